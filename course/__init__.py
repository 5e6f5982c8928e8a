"""Tools that make and run the course; no notebook imports them, and the wheel of ``d2lps`` does not contain them.

* ``book`` turns lessons and prose into notebooks, checks them, and opens the learner's workspace
  (``python -m course.book``, ``make lab``, ``make build``, ``make check``, ``make figures``);
* ``site`` builds the static book from the same sources (``python -m course.site``, ``make book``, ``make serve``);
* ``syllabus`` writes ``docs/syllabus.md`` (``python -m course.syllabus``);
* ``handout`` packs what learners get, without solutions (``make handout``);
* ``classes`` grades a class of notebooks (``python -m course.classes``, ``make grade``).

Start with the ``__init__.py`` of the room that a change concerns; it says which file decides what.
"""
