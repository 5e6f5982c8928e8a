"""A worker's store whose slots have replicas: it lives as long as one server of each is left."""

from collections.abc import Callable
from contextlib import ExitStack

from d2lps.algorithms.placement import Placement
from d2lps.kvstore.replicas.client import SlotClient
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replication import View
from d2lps.kvstore.worker.dist import DistStore


class ReplicatedStore(DistStore):
    """As :class:`~d2lps.kvstore.worker.dist.DistStore`, with a connection to every slot."""

    clients: list[SlotClient]

    def __init__(
        self,
        kind: str,
        rank: int,
        workers: int,
        clients: list[SlotClient],
        placement: Placement,
        *,
        kill: Callable[[int], object],
        **options,
    ):
        super().__init__(kind, rank, workers, clients, placement, **options)
        self._kill = kill
        for client in self.clients:
            client.keys = self._KeysOf(self._keys, client.number)

    @property
    def views(self) -> list[View]:
        """Of each slot, which view it is in, and the numbers of its servers: the primary, and its backup if any.

        It is what the register holds: just after a server was lost, for a moment, the view in which it still was.
        """
        return [client.seen for client in self.clients]

    def kill_server(self, number: int) -> None:
        """End a server, as a machine ends that fails: to try what comes of it.

        Where servers are processes, a worker ends those that it started, and others take their places.

        Parameters
        ----------
        number : int
            Which server, counted from 0. Refused where another worker started it, which the sentence names.
        """
        self._kill(number)

    class _KeysOf:
        """The keys that lie in a slot, whole or in part, as they are when that is asked."""

        def __init__(self, keys: dict, slot: int):
            self._keys, self._slot = keys, slot

        def __iter__(self):
            specs = [*self._keys.values()]
            return (spec.key for spec in specs if any(part.server == self._slot for part, _ in spec.parts))


def connect_to_slots(
    count: int, register: Register | StoreRegister, rank: int, undo: ExitStack, **options
) -> list[SlotClient]:
    """A connection to each slot, in their order; ``undo`` closes them."""
    clients = []
    for number in range(count):
        clients.append(SlotClient(number, register, rank, **options))
        undo.callback(clients[-1].close)
    return clients
