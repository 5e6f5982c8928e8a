"""A server: it listens, hears what workers ask for, closes rounds, and answers."""
