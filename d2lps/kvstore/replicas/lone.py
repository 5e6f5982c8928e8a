"""The store of one server without replicas, as a slot with one member. Only tests use it so far."""

from d2lps.kvstore.replicas.register import Register
from d2lps.kvstore.replicas.store import SlotStore


class LoneStore(SlotStore):
    """A store with the arguments of a ShardStore."""

    def __init__(self, kind: str, workers: int, **settings):
        super().__init__(kind, workers, **settings)
        name, register = (0, "", ""), Register()
        register.begin(0, (name,))
        self.open(0, name, register, None, lambda: None)
