"""The authoring room: chapters in three languages → notebooks, and the checks that keep them one course.

Its modules, each importing only from those before it: ``findings``, ``figures``, ``lesson``, ``library``, ``notebook``,
``reading``, ``language``, ``glossary``, ``agree``, ``check``, ``workspace``, ``pull``, and the commands of
``python -m course.book``. What each language wants of its texts is data, in ``rules/``.
"""

import sys

# nbformat imports it by way of jsonschema, for formats that no notebook has: it takes a second to make a grammar.
sys.modules.setdefault("rfc3987_syntax", None)
