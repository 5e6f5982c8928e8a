"""The book as a static site in three languages: pages play, are searched and print without a server.

Start with ``build``, which makes the site and replaces the old one; ``__main__`` has the commands.

* ``runs`` executes a chapter (``execute``) or finds its kept outputs, which serve until one of its ``inputs`` changes;
  ``current`` tells if the site is up to date;
* ``prose`` (texts), ``outputs`` (of cells), ``linked`` (code), ``exercises`` and ``terms`` make the HTML of a chapter's
  parts; ``reference``, ``docstrings`` and ``api`` make that of the package's pages;
* ``pages`` puts the parts into pages with the templates in ``theme/``; ``front`` makes the first pages, whose map
  ``theme/progress.js`` marks with what was read and solved; ``bandwidths`` makes the page of bus bandwidths,
  ``cheat_sheet`` that of notation and costs, ``downloads`` the notebooks to take away, ``search`` the index, ``pdf``
  the printed book;
* ``browser`` offers cells to be run in the reader's browser: ``trial`` finds them, ``pyodide`` has Python for it,
  ``in_browser`` runs them there;
* ``server`` is that of ``make serve``;
* ``proof`` looks for dead links and other faults before the new site replaces the old one.
"""
