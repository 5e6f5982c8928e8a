"""A server: it receives requests of workers, counts pushes, closes rounds, and answers.

Each slot of keys is on one server or, with replicas, on two. The rules are the same, as one server is a group of one:
they are in ``kvstore.replication``. Start at ``session``, which reads, checks and answers the requests of one worker.
``store`` has a method for each, the policies for a lost worker (``LOST``), whose effect is in ``lose``, and the time
until a takeover (``PATIENCE``: seconds of silence after which a server is dead). ``parts`` has its parts of keys;
``slot`` gives messages to the rules and carries out their effects, with sockets and clocks.

``server`` listens, and decides which workers are lost; its ``Host`` has one server or two replicas. ``process`` starts
it in a process of its own, where ``__main__`` runs, and replaces a dead one. ``register`` holds the views of all slots;
``peers`` and ``coding`` carry messages between servers.
"""
