"""The parts of the course that run in a reader's notebook.

Each public name has a module of its own; start with ``predict``::

    grading    checks exercises                    explore    races with sliders
    predict    asks for a number before a run      progress   what the reader has run and passed, on the map of the
    ranks      the processes of ``%%px`` cells                course; ``opening``: the runs at the head of a chapter
    schedule_table    ``edit``: the table of a pipeline, whose cells the reader moves
    tradeoff   steps against examples, with sliders
    hand       pictures that answer to the hand: ``bubbles``, ``wires``, ``story``; ``divide`` is one, too
    divide     a model divided over GPUs, with sliders
    recorded   a kept result of what is missing here: a package, or emulated hosts

``predict_page`` decides which guesses are accepted and shows the question without a kernel, ``fields`` with one;
``predict`` shows the answer. ``shown`` decides which values display themselves, and how one run is shown in all
languages, ``plots`` how matplotlib's figures look, ``kept`` what is stored in the workspace.
``d2l_compat`` imports the helpers of *Dive into Deep Learning*, or takes its place.
"""
