"""Cases of a teacher's own for the exercises of chapter 01: an example to copy and change.

Keep your copy outside the repository, one file per chapter with the name of its folder. ``make variants`` with
``VARIANTS=folder`` compares the cases with the solutions, and ``make grade`` with it grades with them.

``CASES`` maps an exercise to further cases, of the kind that the chapter's ``grader.py`` has in ``EXERCISES``. Its
functions make them here with other names and numbers. Learners read the label of a case that their answer gets wrong,
so change the cases every year.
"""

from chapter_01_data_parallelism.grader import overlap_case, own_gpu_case

CASES = {
    "own-gpu": [own_gpu_case(5, names="red green blue white black"), own_gpu_case(9)],
    "overlap": [overlap_case(3, 7, cpu="host", names="left middle right")],
}
