"""The distributed store of one worker, with slots that have replicas: one server of each is enough."""

from collections.abc import Callable
from contextlib import ExitStack

from d2lps.algorithms.placement import Placement
from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.replicas.client import SlotClient
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replication import View
from d2lps.kvstore.wire.frames import Op
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
        """The view of each slot, with the numbers of its servers: the primary, and its backup if there is one.

        For a moment after the loss of a server it is still the view with that server.
        """
        return [client.seen for client in self.clients]

    def kill_server(self, number: int) -> None:
        """End a server abruptly, as a machine ends that fails.

        If servers are processes, a worker can end those that it started, and others take their places.

        Args:
            number: The server, counted from 0. Raises Refused if another worker started it, and names that worker.
        """
        self._kill(number)

    def _confirm(self, number: int) -> None:
        """Ask every slot: a primary that was replaced during the load would still give the values before it."""
        try:
            self._ask(self.clients, Op.COMMIT, {"load": number, "confirm": True})
        except Refused as error:
            raise KVError(str(error)) from None

    class _KeysOf:
        """The keys of a slot, whole or in part, at the time of iteration."""

        def __init__(self, keys: dict, slot: int):
            self._keys, self._slot = keys, slot

        def __iter__(self):
            specs = [*self._keys.values()]
            return (spec.key for spec in specs if any(part.server == self._slot for part, _ in spec.parts))


def connect_to_slots(
    count: int, register: Register | StoreRegister, rank: int, undo: ExitStack, **options
) -> list[SlotClient]:
    """Return a connection to each slot, in their order; ``undo`` closes them."""
    clients = []
    for number in range(count):
        clients.append(SlotClient(number, register, rank, **options))
        undo.callback(clients[-1].close)
    return clients
