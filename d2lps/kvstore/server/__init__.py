"""A server: it listens, hears what workers ask for, closes rounds, and answers.

``process`` is what runs; ``server`` listens; ``session`` hears one worker and answers; ``requests`` says what may be
asked; ``shard_store`` holds the shards and counts pushes, ``merging`` closes their rounds.
"""
