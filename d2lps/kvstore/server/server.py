"""A server of one slot: it listens, admits workers and the other servers of the slot, and serves each in a thread.

Anything that is not a frame of ours closes that connection alone. A :class:`Host` has one server, or two replicas.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from d2lps.carriers.rendezvous import DEADLINE
from d2lps.kvstore import threads
from d2lps.kvstore.errors import Refused, server_text
from d2lps.kvstore.record import LossRecord
from d2lps.kvstore.server.peers import STILL, Peers
from d2lps.kvstore.server.register import Register, StoreRegister, as_name
from d2lps.kvstore.server.session import PeerSession, WorkerSession
from d2lps.kvstore.server.store import PATIENCE, SlotStore
from d2lps.kvstore.threads import own_time
from d2lps.kvstore.wire import handshake
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import Broken
from d2lps.kvstore.wire.handshake import Elsewhere, loopback
from d2lps.kvstore.wire.shared_buffer import SharedBuffer
from d2lps.messages import why
from d2lps.units import is_count

ADDRESS = ("127.0.0.1", 0)
RETURN, LOOK = 1.0, 0.02  # seconds in which a worker may come back whose connection has ended; between two looks
UNAUTHENTICATED = 32  # connections at once that have not yet proved who they are


class Server:
    """One server of a slot, which listens from its creation until :meth:`close`.

    ``address``: (host, port), port 0 for any that is free, which needs a ``secret`` of 16 bytes or more that the
    workers know; or the path of a Unix socket, which belongs to this user. Workers of another ``run`` are refused.
    ``number``: of the slot. Without a ``register`` of views the slot has no other server, and this one lends memory to
    workers of its host. ``server``: its number, by default that of its slot; ``incarnation``: a new name for each
    start.
    """

    def __init__(
        self,
        store: SlotStore,
        address: "tuple[str, int] | str" = ADDRESS,
        *,
        secret: bytes = b"",
        run: str = "",
        number: int = 0,
        register: Register | StoreRegister | None = None,
        server: int | None = None,
        incarnation: str = "",
    ):
        if not secret and not isinstance(address, str):
            others = "by other users of this machine" if loopback(address) else "from other hosts"
            raise Refused(
                f"a server at {address[0]} can be reached {others}: put a secret into the file that "
                f"{handshake.FILE} names, or into {handshake.VARIABLE}"
            )
        self.store, self.secret, self.run, self.number = store, secret, run, number
        listener = None
        try:
            listener = self._listener = handshake.new_socket(address)
            if not isinstance(address, str):
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            if isinstance(address, str):
                os.chmod(address, 0o600)  # whatever the umask; before it listens, no other user can connect
            self._listener.listen(socket.SOMAXCONN)
        except OSError as error:
            if listener:
                listener.close()
            raise Refused(
                f"server {number} cannot listen at {address} ({why(error)}): give another address, or "
                "port 0 for any that is free"
            ) from None
        self.address = self._listener.getsockname()
        if not isinstance(address, str):
            self.address = self.address[:2]  # of IPv6, without the flow and the scope
        self._sessions: dict[int, WorkerSession] = {}
        self._others: set[PeerSession] = set()
        self._unauthenticated: dict[Channel, None] = {}  # connections that have not yet proved who they are
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self.name = number if server is None else server, incarnation, self.address
        if register:
            store.open(number, self.name, register, Peers(run, secret), self._deposed)
            self._start(self._await)
        elif isinstance(address, str):
            store.shared_buffer = SharedBuffer.available()
        for target in (self._accept, self._watch):
            self._start(target)

    def silence(self) -> None:
        """Do and say nothing more."""
        self._closed.set()
        self.store.slot.close()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self.silence()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if isinstance(self.address, str):
            with suppress(OSError):
                os.unlink(self.address)
        with self._lock:
            connected = [*self._unauthenticated, *self._sessions.values(), *self._others]
        for connection in connected:
            connection.close()  # type: ignore[attr-defined]
        if self.store.shared_buffer:
            self.store.shared_buffer.close()

    @property
    def _open(self) -> bool:
        return not self._closed.is_set()

    @property
    def busy(self) -> bool:
        """Whether a worker or another server is connected."""
        return bool(self._others) or any(session.open for session in list(self._sessions.values()))

    def _start(self, target, *arguments) -> None:
        threads.start(f"d2lps server {self.number}", target, *arguments)

    def _accept(self) -> None:
        while self._open:
            try:
                channel = Channel(self._listener.accept()[0], handshake.SECONDS)
            except OSError:
                if self._open:
                    time.sleep(0.05)  # no more files can be opened: the present connections go on
                continue
            with self._lock:
                if len(self._unauthenticated) >= UNAUTHENTICATED:  # the oldest one has had most time
                    oldest = next(iter(self._unauthenticated))
                    del self._unauthenticated[oldest]
                    oldest.close()
                self._unauthenticated[channel] = None
            try:
                self._start(self._meet, channel)
            except RuntimeError:  # no more threads can be started
                self._unauthenticated.pop(channel, None)
                channel.close()
                time.sleep(0.05)

    def _meet(self, channel: Channel) -> None:
        guard = threading.Timer(handshake.SECONDS, channel.close)  # also for one that sends a byte from time to time
        guard.daemon = True
        coded = not loopback(self.address)
        try:
            guard.start()
            hello = handshake.as_server(channel, self.secret, lambda hello: self._admit(channel, hello), coded)
            channel.patience(max(self.store.deadline, 1.0))
        except (Broken, Refused, OSError, RuntimeError):  # RuntimeError: no more threads, or JSON nested too deeply
            channel.close()
            return
        finally:
            guard.cancel()
            with self._lock:
                self._unauthenticated.pop(channel, None)
        self._serve(channel, hello)

    def _serve(self, channel: Channel, hello: Mapping) -> None:
        if not self.store.slot.alone and "server" in hello:
            self._serve_server(channel, as_name(hello["server"]))
            return
        session = WorkerSession(self.store, channel, hello["rank"], hello["incarnation"], self._ended, self.number)
        with self._lock:
            before, self._sessions[session.rank] = self._sessions.get(session.rank), session
        if before is not None:
            before.close()
        if not self._open:  # it was closed just before
            session.close()
        session.run()

    def _serve_server(self, channel: Channel, name: tuple) -> None:
        channel.patience(STILL)
        session = PeerSession(self.store.slot, channel, name)
        self._others.add(session)
        try:
            session.run()
        finally:
            self._others.discard(session)

    def _admit(self, channel: Channel, hello: Mapping) -> dict:
        """Return the welcome for a worker, and use its memory if that is possible. Raises Refused."""
        slot = self.store.slot
        if not slot.alone and hello.get("run") == self.run and "server" in hello:
            return self._admit_server(hello)
        if not slot.leads:
            view = slot.core.view.number
            raise Elsewhere(f"in view {view}, which it knows, this server is not the primary of slot {self.number}")
        rank, incarnation, live = hello["rank"], hello.get("incarnation"), self._sessions.get(hello["rank"])
        if hello.get("run") != self.run:
            raise Refused(f"worker {rank} belongs to run {hello.get('run')!r}, this server to {self.run!r}")
        if not is_count(rank, most=self.store.workers - 1):
            raise Refused(f"there is no worker {rank}: they are 0 to {self.store.workers - 1}")
        if live is not None and live.incarnation != incarnation:
            raise Refused(f"there is a worker {rank} already: each rank is one process")
        if not isinstance(incarnation, str):
            raise Refused("a worker says which incarnation of its rank it is")
        shared_buffer = self.store.shared_buffer
        lends = shared_buffer and channel.borrow(hello.get("memory"))
        memory = shared_buffer.lent if shared_buffer and lends else None
        return {"kind": self.store.kind, "memory": memory, "record": bool(self.store.record)}

    def _admit_server(self, hello: Mapping) -> dict:
        name = as_name(hello["server"])
        number, incarnation, address = name if isinstance(name, tuple) and len(name) == 3 else (None, None, None)
        if hello.get("slot") != self.number or not is_count(number) or not isinstance(incarnation, str):
            raise Refused(f"a server of another slot: this one is {self.number}")
        if not isinstance(address, str) and not (isinstance(address, tuple) and len(address) == 2):
            raise Refused("a server says where it listens")
        return {}

    def _deposed(self) -> None:
        """Let workers go to another server; none of them is lost by that."""
        with self._lock:
            sessions = [*self._sessions.values()]
            self._sessions.clear()
        for session in sessions:
            session.close()

    def _ended(self, session: WorkerSession, why: str, left: bool, silent: bool) -> None:
        """Count a worker as lost whose session has ended; unless it left or was silent, it may come back first."""
        since = time.monotonic() - (own_time() - session.heard if silent else 0.0)
        until = own_time() + (0.0 if left or silent else min(RETURN, self.store.deadline / 2))
        while self._open and own_time() < until:
            if self._sessions.get(session.rank) is not session:
                return  # it is back
            time.sleep(LOOK)
        if left or silent or self._open and self._sessions.get(session.rank) is session:
            if self.store.record and not left:
                self.store.record.add(LossRecord(session.rank, since, time.monotonic()))
            self.store.lose(session.rank, why, left)

    def _watch(self) -> None:
        """Count workers as lost that are silent for a whole deadline, and answer pulls that have waited for one."""
        while not self._closed.wait(min(0.25, self.store.deadline * threads.POLL)):
            self.store.expire()
            for session in list(self._sessions.values()):
                silent = own_time() - session.heard
                if session.open and not session.working and silent > self.store.patience:
                    seconds, deadline = f"{silent:.1f}", f"{self.store.deadline:g}"
                    session.end(server_text("store.silent", silent=seconds, deadline=deadline))

    def _await(self) -> None:
        """Count workers as lost that do not come to this server after it took over."""
        deadline = self.store.deadline
        patience = max(PATIENCE, self.store.patience)
        while not self._closed.wait(min(0.25, deadline * threads.POLL)):
            slot, led = self.store.slot, self.store.slot.led
            if led is not None and slot.took_over and own_time() - led > patience:
                for rank in sorted(self.store.live - self._sessions.keys()):
                    self.store.lose(rank, server_text("store.server.absent"))


class Host:
    """Server ``number`` of ``servers``, which listens in ``folder``, or else at ``address`` on free ports.

    ``settings``: the arguments of :class:`SlotStore`; ``run``: the ``run`` and ``secret`` of a
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
        """End as a process that is killed."""
        for replica in self.replicas.values():
            replica.silence()
        for replica in self.replicas.values():
            replica.close()


def begin(hosts: dict[int, dict[int, tuple]], register: Register | StoreRegister) -> None:
    """Register the first view of each slot; ``hosts``: by server the names of its replicas, by slot."""
    for slot in hosts:
        register.begin(slot, (hosts[slot][slot], hosts[(slot + 1) % len(hosts)][slot]))
