"""The authoring room: chapters in three languages → notebooks, and the checks that keep them one course.

Its modules, each importing only from those before it: ``lesson``, ``library``, ``notebook``, ``files``, ``plain``,
``findings``, ``figures``, ``structure``, ``numbers``, ``chinese``, ``language``, ``glossary``, ``agree``, ``check``,
``origin``, ``workspace``, ``pull``, and the commands of ``python -m d2lps.course.book``.
"""
