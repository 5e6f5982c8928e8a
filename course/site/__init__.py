"""The book as a site: pages that play, are searched and print without a server, in each language.

``runs`` executes chapters, or finds what they gave; ``outputs``, ``prose`` and ``exercises`` make pieces of HTML of
their parts, ``reference`` of docstrings; ``pages`` puts them together with ``theme/``; ``search`` indexes their
sections; ``proof`` reads the site once more before it takes the place of the last one; ``build`` does all of it.
"""
