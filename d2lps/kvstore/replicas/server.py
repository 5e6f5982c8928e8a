"""A server of which a slot's replica listens: for workers where it is the primary, and for the other members."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.replicas.lines import STILL, Peers, Snapshots, begins_snapshot, hear
from d2lps.kvstore.replicas.register import Register, StoreRegister, as_name
from d2lps.kvstore.replicas.store import PATIENCE, SlotStore
from d2lps.kvstore.replication.messages import Confirm, Name
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.session import WorkerSession
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import AGAIN, PUSHES, Broken, Frame, Op
from d2lps.kvstore.wire.handshake import Elsewhere
from d2lps.units import is_count

FLUSH = 1.0  # seconds for which a goodbye waits for what was pushed


class ReplicaSession(WorkerSession):
    """A worker at the primary of a slot. What it is told is true also if this server ends."""

    store: SlotStore

    def _ok(self, frame: Frame, metadata: dict | None = None) -> None:
        said = partial(super()._ok, frame, metadata)
        if frame.op in PUSHES and self.store.kind == "dist_sync":
            said()  # it counts in the open round, and the worker keeps it: it may have to push before that closes
        else:
            self._when_committed(said)

    def _error(self, frame: Frame, error: KVError) -> None:
        said = partial(super()._error, frame, error)
        if isinstance(error, Refused):  # another server may be the primary, and know better
            said = partial(self._when_it_holds, said)
        if frame.op in PUSHES and self.store.kind != "dist_sync":
            self._when_committed(said)  # it says what counts
        else:
            said()

    def _when_committed(self, said: Callable[[], object]) -> None:
        try:
            self.store.slot.when_committed(said)
        except Broken:
            self.close()

    def _when_it_holds(self, said: Callable[[], object]) -> None:
        slot = self.store.slot
        try:
            with slot.leading():
                slot.ask(self.rank, Confirm(0, 0, self.rank), lambda answer: said())
        except Broken:
            self.close()

    def _answer(self, *arguments, **named) -> None:
        if self.store.slot.leads:
            super()._answer(*arguments, **named)
        else:
            self.close()

    def _named(self, op: Op, error: Exception) -> KVError:
        if isinstance(error, Broken):
            self.close()  # nobody hears it: the worker asks elsewhere
            return KVError(str(error))
        return super()._named(op, error)

    def _counting(self, frame: Frame, numbers: list[int]) -> AbstractContextManager:
        return self.store.counting(self.rank, numbers, any(entry.finite & AGAIN for entry in frame.entries))

    def on_pushpull(self, frame: Frame) -> None:
        since = self.store.slot.core.seq
        self._count(frame)
        if not self.on_pull(frame, since) and not all(
            self.store.comes(each.part, each.round) for each in frame.entries
        ):
            self._ok(frame)  # else the value says so, as soon as it is on both

    def on_bye(self, frame: Frame) -> None:
        """What it has pushed stays, whoever ends: so it waits for its rounds a moment."""
        until = time.monotonic() + FLUSH
        while self.store.pending(self.rank) and time.monotonic() < until and self.open:
            time.sleep(0.01)


class PeerSession:
    """Another server of the slot, as it is heard."""

    def __init__(self, store: SlotStore, channel: Channel, other: Name):
        self.slot, self.channel, self.other, self.open = store.slot, channel, other, True

    def close(self) -> None:
        self.open = False
        self.channel.close()

    def run(self) -> None:
        snapshots = Snapshots()
        try:
            while self.open:
                frame = self.channel.receive(idle=True)
                if frame is None:
                    continue
                self.slot.sign(self.other)
                if frame.op == Op.PEER:
                    self.slot.arriving |= begins_snapshot(frame)
                    messages = hear(self.channel, frame, partial(self.slot.sign, self.other))
                    self.slot.hear(self.other, [each for each in map(snapshots.whole, messages) if each is not None])
                    self.slot.arriving = snapshots.coming
                elif frame.op != Op.ALIVE:
                    raise Broken(f"a server may not say {frame.op.name}")
        except Broken:
            pass
        finally:
            self.slot.arriving = False
            self.channel.close()
            self.slot.lost_line(self.other)


class ReplicaServer(Server):
    """Server ``server``, in its ``incarnation``, as it has a replica of ``slot``.

    See :class:`~d2lps.kvstore.server.server.Server`; ``settings`` are those of a ShardStore.
    """

    lends = False
    store: SlotStore

    def __init__(
        self,
        slot: int,
        server: int,
        incarnation: str,
        address: "tuple[str, int] | str",
        settings: dict,
        register: Register | StoreRegister,
        peers: Peers,
    ):
        self._others: set[PeerSession] = set()
        who = {"secret": peers.secret, "run": peers.run, "certificates": peers.certificates}
        super().__init__(SlotStore(**settings), address, number=slot, **who)
        self.name: Name = server, incarnation, self.address
        self.store.open(slot, self.name, register, peers, self._deposed)
        self._start(self._await)

    @property
    def busy(self) -> bool:
        return super().busy or bool(self._others)

    def silence(self) -> None:
        """Nothing more is done or said here."""
        self._closed.set()
        self.store.slot.close()

    def close(self) -> None:
        self.silence()
        super().close()
        for session in [*self._others]:
            session.close()

    def _session(self, *arguments) -> ReplicaSession:
        return ReplicaSession(*arguments)

    def _admit(self, channel: Channel, hello: Mapping) -> dict:
        if hello.get("run") == self.run and "server" in hello:
            return self._admit_server(hello)
        slot = self.store.slot
        if slot is None or not slot.leads:
            view = slot.core.view.number if slot else 0
            raise Elsewhere(f"in view {view}, which it knows, this server is not the primary of slot {self.number}")
        return super()._admit(channel, hello)

    def _admit_server(self, hello: Mapping) -> dict:
        name = as_name(hello["server"])
        number, incarnation, address = name if isinstance(name, tuple) and len(name) == 3 else (None, None, None)
        if hello.get("slot") != self.number or not is_count(number) or not isinstance(incarnation, str):
            raise Refused(f"a server of another slot: this one is {self.number}")
        if not isinstance(address, str) and not (isinstance(address, tuple) and len(address) == 2):
            raise Refused("a server says where it listens")
        return {"number": self.number}

    def _serve(self, channel: Channel, hello: Mapping) -> None:
        if "server" not in hello:
            super()._serve(channel, hello)
            return
        channel.patience(STILL)
        session = PeerSession(self.store, channel, as_name(hello["server"]))
        self._others.add(session)
        try:
            session.run()
        finally:
            self._others.discard(session)

    def _deposed(self) -> None:
        """Workers go elsewhere; none of them is lost by that."""
        with self._lock:
            sessions = [*self._sessions.values()]
            self._sessions.clear()
        for session in sessions:
            session.close()

    def _await(self) -> None:
        """A worker that does not come to who has taken over is lost, too."""
        deadline = self.store.deadline
        patience = max(PATIENCE, deadline * (0.75 if self.store.lost == "drop" else 1.0))
        while not self._closed.wait(min(0.25, deadline / 8)):
            slot, led = self.store.slot, self.store.slot.led
            if led is not None and slot.took_over and own_time() - led > patience:
                for rank in sorted(self.store.live - self._sessions.keys()):
                    self.store.lose(rank, "it has not come to the server that took over")
