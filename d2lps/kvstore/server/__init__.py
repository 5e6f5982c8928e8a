"""A server: it receives requests of workers, counts pushes, closes rounds, and answers.

Start at ``session``, which reads the requests of one worker and answers them. ``requests`` checks them; ``shard_store``
holds the values, counts pushes and closes rounds; ``shard`` is its part of one key; ``base`` has the refusals that it
shares with a store that has replicas, and the policies for a lost worker (``LOST``), whose effect is in ``lose``;
``barriers`` are where workers wait for each other; ``staged`` holds what is loaded until all servers have their parts.
``server`` listens, and decides which workers are lost; ``process`` starts a server in a process of its own, where
``__main__`` runs.
"""
