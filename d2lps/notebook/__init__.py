"""What readers meet in a notebook: exercises that are checked, predictions, explorers, progress, ranks and plots.

``grading`` judges exercises, ``predict`` asks for a number before the run, ``explore`` is a race with sliders,
``ranks`` are the processes behind a ``%%px`` cell, ``progress`` shows what the reader has solved, and ``opening``
plays the runs at the head of a chapter. ``shown`` and ``plots`` decide how values and figures look, ``kept`` what the
workspace remembers, and ``d2l_compat`` lends the helpers of *Dive into Deep Learning*.
"""
