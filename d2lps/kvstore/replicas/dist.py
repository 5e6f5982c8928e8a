"""A worker's store whose slots have replicas: it lives as long as one server of each is left."""

from collections.abc import Sequence
from contextlib import ExitStack

from d2lps.algorithms.placement import Placement
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.replicas.client import SlotClient
from d2lps.kvstore.replicas.keeper import Keeper
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replication import View
from d2lps.kvstore.worker.dist import DistStore
from d2lps.messages import text


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
        owners: Sequence[int] = (),
        **options,
    ):
        super().__init__(kind, rank, workers, clients, placement, **options)
        self._owners = owners  # by server: the rank that started it
        for client in self.clients:
            client.keys = self._KeysOf(self._keys, client.number)

    @property
    def views(self) -> list[View]:
        """Of each slot, which view it is in, and the numbers of its servers: the primary, and its backup if any."""
        return [client.seen for client in self.clients]

    def kill_server(self, number: int) -> None:
        """End a server process that this worker started, as a machine ends that fails: to try what comes of it.

        Another one takes its place, and learns from the others what it has to hold.

        Parameters
        ----------
        number : int
            Which server, counted from 0. Refused where another worker started it.
        """
        if type(number) is not int or not 0 <= number < len(self._owners):
            raise Refused(text("store.no-server", server=repr(number), last=len(self._owners) - 1))
        for keeper in self.started:
            if isinstance(keeper, Keeper) and keeper.number == number:
                keeper.kill()
                return
        said = {"server": number, "rank": self.rank, "owner": self._owners[number]}
        raise Refused(text("store.not-my-server", **said))

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
