"""The course around the package: ``grading`` judges exercises, ``book`` makes notebooks of lessons and prose,
``ranks`` are the processes behind a notebook, ``d2l_compat`` lends D2L's helpers.
"""
