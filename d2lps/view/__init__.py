"""What is seen of a trace: ``drawing`` lays it out as one SVG scene, ``player`` moves it, ``tables`` set it as text."""
