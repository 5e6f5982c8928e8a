"""The authoring room: it turns chapters in three languages into notebooks, and checks that they say the same.

Start with lesson.py, which describes the format of a chapter; the commands of ``python -m course.book`` are in
__main__.py. Each module imports only modules listed before it:

* ``findings``: errors and findings, as the author reads them; ``figures``: a chapter's functions that draw;
  ``chromium``: the browser that prints;
* ``lesson`` reads the files of a chapter; ``library`` reads the whole book and finds faults that keep it from being
  built; ``navigation`` says what a chapter needs and what comes next; ``notebook`` writes a notebook, ``stills`` puts
  the picture of the opening into it;
* ``reading`` splits a text into prose, formulas, code and links; ``language`` checks numbers, letters and style by the
  data in ``rules/``; ``glossary`` checks terms and symbols; ``agree`` records which sections were read side by side;
  ``check`` runs all checks;
* ``workspace`` makes the readers' copies and starts JupyterLab.
"""

import sys

# jsonschema, which nbformat imports, would spend a second on a grammar for formats that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)
