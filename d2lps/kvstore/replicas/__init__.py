"""Servers of which each slot lives on two: the rules of ``kvstore.replication`` at work, with sockets and clocks.

``register`` holds the views, ``coding`` and ``lines`` carry what servers say to one another, ``slot`` hands it to the
rules and does what they say, ``store`` is what the sessions of workers see of it, ``server`` listens, ``host`` has two
of them; ``client`` is a worker's end, which goes where the primary is, ``keeper`` replaces a dead server.
"""
