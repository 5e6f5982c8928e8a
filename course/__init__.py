"""What makes and runs the course; no notebook imports it, and the wheel of ``d2lps`` does not contain it.

* ``book``: lesson and prose become notebooks; checks of language and style; the learner's workspace
  (``python -m course.book``, ``make lab``, ``make build``, ``make check``).
* ``site``: the static book (``python -m course.site``, ``make book``, ``make serve``).
* ``classes``: grading a class (``python -m course.classes``, ``make grade``).

Start at the ``__init__.py`` of the room that a change concerns.
"""
