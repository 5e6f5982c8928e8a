"""A server with its replicas: one of the slot with its number, which is the primary at first, and a backup of the slot
before, if values have replicas.
"""

import os
import secrets

from d2lps.carriers.rendezvous import DEADLINE
from d2lps.kvstore.server.register import Register, StoreRegister
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.store import SlotStore


class Host:
    """Server ``number`` of ``servers``, which listens in ``folder``, or else at ``address`` on free ports.

    ``settings``: the arguments of :class:`SlotStore`; ``run``: the ``run``, ``secret`` and ``certificates`` of a
    :class:`Server`. Without a ``register`` its slot has no other server.
    """

    def __init__(
        self,
        number: int,
        servers: int,
        settings: dict,
        register: Register | StoreRegister | None,
        run: dict,
        folder: str | None = None,
        address: str = "127.0.0.1",
    ):
        self.number, incarnation = number, secrets.token_hex(4)
        self.deadline = settings.get("deadline", DEADLINE)
        self.replicas: dict[int, Server] = {}
        who = {"register": register, "server": number, "incarnation": incarnation} | run
        try:
            for slot in (number, (number - 1) % servers) if register else (number,):
                where = os.path.join(folder, f"{number}-{slot}-{incarnation}") if folder else (address, 0)
                self.replicas[slot] = Server(SlotStore(**settings), where, number=slot, **who)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> dict[int, tuple]:
        """The names of its replicas by slot, as in views."""
        return {slot: replica.name for slot, replica in self.replicas.items()}

    @property
    def member(self) -> bool:
        """Whether it is a member of the view of a slot."""
        return any(replica.store.slot.member for replica in self.replicas.values())

    @property
    def needed(self) -> bool:
        """Whether a worker may still come, or another member does not know yet that none will."""
        return any(replica.store.needed for replica in self.replicas.values())

    @property
    def busy(self) -> bool:
        """Whether a worker or a server is connected."""
        return any(replica.busy for replica in self.replicas.values())

    def close(self) -> None:
        """End abruptly, as a process that is killed ends."""
        for replica in self.replicas.values():
            replica.silence()
        for replica in self.replicas.values():
            replica.close()


def begin(hosts: dict[int, dict[int, tuple]], register: Register | StoreRegister) -> None:
    """Register the first view of each slot; ``hosts``: by server the names of its replicas, by slot."""
    for slot in hosts:
        register.begin(slot, (hosts[slot][slot], hosts[(slot + 1) % len(hosts)][slot]))
