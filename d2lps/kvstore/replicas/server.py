"""A replica of a slot as a server: it listens for workers, if it is the primary, and for the other members."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.replicas.lines import STILL, Peers, Snapshots, begins_snapshot, hear
from d2lps.kvstore.replicas.register import Register, StoreRegister, as_name
from d2lps.kvstore.replicas.store import PATIENCE, SlotStore
from d2lps.kvstore.replication.messages import Confirm, Name
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.session import WorkerSession
from d2lps.kvstore.told import told
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import PUSHES, Broken, Frame, Op
from d2lps.kvstore.wire.handshake import Elsewhere
from d2lps.units import is_count

FLUSH = 1.0  # seconds that a goodbye waits until pushes are committed


class ReplicaSession(WorkerSession):
    """A worker at the primary of a slot. Its answers hold also if this server ends."""

    store: SlotStore

    def _ok(self, frame: Frame, metadata: dict | None = None) -> None:
        said = partial(super()._ok, frame, metadata)
        if frame.op in PUSHES and self.store.kind == "dist_sync":
            said()  # the worker keeps it: it may have to push again before the open round closes
        else:
            self._when_committed(said)

    def _error(self, frame: Frame, error: KVError) -> None:
        said = partial(super()._error, frame, error)
        if isinstance(error, Refused):  # another server may be the primary, and know more
            said = partial(self._when_it_holds, said)
        if frame.op in PUSHES and self.store.kind != "dist_sync":
            self._when_committed(said)  # it says which pushes are counted
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
            self.close()  # the worker does not get it, and asks another server
            return KVError(str(error))
        return super()._named(op, error)

    def _answer_last(self, frame: Frame, name: str) -> None:
        last = {"last": self.store.last_barrier(self.rank, name)}
        answer = partial(super()._ok, frame, last)
        self._when_committed(partial(self._when_it_holds, answer))  # another server may be the primary, and know more

    def on_pushpull(self, frame: Frame) -> None:
        since = self.store.slot.core.seq
        self._count(frame)
        if not self.on_pull(frame, since) and not all(
            self.store.readable(entry.part, entry.round) for entry in frame.entries
        ):
            self._ok(frame)  # else the value is the answer, as soon as both servers have it

    def on_bye(self, frame: Frame) -> None:
        """Wait a moment until its pushes are committed: they stay, whichever server ends."""
        until = time.monotonic() + FLUSH
        while self.store.pending(self.rank) and time.monotonic() < until and self.open:
            time.sleep(0.01)


class PeerSession:
    """The messages of another server of the slot."""

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
                    self.slot.hear(
                        self.other, [message for message in map(snapshots.whole, messages) if message is not None]
                    )
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
    """The replica of ``slot`` at server ``server``, which has a new ``incarnation`` after each start.

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
        """Do and say nothing more."""
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
        """Let workers go to another server; none of them is lost by that."""
        with self._lock:
            sessions = [*self._sessions.values()]
            self._sessions.clear()
        for session in sessions:
            session.close()

    def _await(self) -> None:
        """Count workers as lost that do not come to this server after it took over."""
        deadline = self.store.deadline
        patience = max(PATIENCE, self.store.patience)
        while not self._closed.wait(min(0.25, deadline / 8)):
            slot, led = self.store.slot, self.store.slot.led
            if led is not None and slot.took_over and own_time() - led > patience:
                for rank in sorted(self.store.live - self._sessions.keys()):
                    self.store.lose(rank, told("store.told.absent"))
