"""Servers with replicas: each slot is on two servers. The rules are in ``kvstore.replication``.

Start at ``slot``, which gives messages to the rules and carries out their effects, with sockets and clocks. ``store``
gives the sessions of workers the methods of a ShardStore, and decides the time until a takeover (``PATIENCE``: seconds
of silence after which a server counts as dead); ``server`` listens; a ``host`` has two replicas. ``register`` holds the
views of all slots; ``lines`` and ``coding`` carry messages between servers. ``client`` is the worker's connection,
which follows the primary; ``dist`` is its store; ``keeper`` replaces a dead server.
"""
