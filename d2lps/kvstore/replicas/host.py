"""A server with two replicas: at first the primary of the slot with its number, and the backup of the one before."""

import os
import secrets

from d2lps.kvstore.replicas.lines import Peers
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replicas.server import ReplicaServer


class Host:
    """Server ``number`` of ``servers``, which listens in ``folder``, or else at ``address`` on free ports."""

    def __init__(
        self,
        number: int,
        servers: int,
        settings: dict,
        register: Register | StoreRegister,
        peers: Peers,
        folder: str | None = None,
        address: str = "127.0.0.1",
    ):
        self.number, self.kind, incarnation = number, settings["kind"], secrets.token_hex(4)
        self.replicas: dict[int, ReplicaServer] = {}
        try:
            for slot in (number, (number - 1) % servers):
                where = os.path.join(folder, f"{number}-{slot}-{incarnation}") if folder else (address, 0)
                of = slot, number, incarnation, where, settings, register, peers
                self.replicas[slot] = ReplicaServer(*of)
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
