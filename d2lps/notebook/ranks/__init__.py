"""The processes of a notebook: ``d2lps.ranks`` starts them, and a ``%%px`` cell runs on all of them.

Start with ``notebook``, the notebook's side::

    notebook   ``ranks`` and what it returns; starting, asking, interrupting and ending the processes
    __main__   the guard process, which loads torch once and forks the ranks and ipyparallel's controller
    rank       the program of a rank: an engine of ipyparallel with torchrun's environment variables; and ``%%px`` while
               there are no ranks
    px         the ``%px`` and ``%%px`` magics: what is shown of a cell, its errors, and Ctrl-C
    startup    what a kernel of ``make lab`` runs first
"""
