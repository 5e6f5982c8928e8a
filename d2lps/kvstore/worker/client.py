"""A worker's connection to a slot: requests go out in order, answers come back in any; what breaks is mended.

A connection that ends is made again, and what was not answered is asked again: a push that was counted before is
answered, not counted twice. If the slot has several servers, the connection follows the primary, and a push that a lost
server may have had alone is repeated. A slot none of whose servers can be reached within the deadline is lost.
"""

import copy
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.rendezvous import DEADLINE, require_seconds
from d2lps.kvstore import threads
from d2lps.kvstore.calls import Interrupted, Once
from d2lps.kvstore.errors import DataLost, KVError, Late, Refused, ServerLost, Timeout, Unknown, WorkerLost, unpacked
from d2lps.kvstore.replication import View
from d2lps.kvstore.server.register import Register, StoreRegister
from d2lps.kvstore.threads import HEARTBEAT, POLL, own_time
from d2lps.kvstore.wire import handshake
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import NOTHING, PUSHES, Broken, Entry, Frame, Op, raw
from d2lps.kvstore.wire.handshake import loopback
from d2lps.kvstore.wire.shared_buffer import SharedBuffer
from d2lps.messages import text, why

KINDS = {kind.__name__: kind for kind in (Refused, Timeout, Late)}  # of errors, beside WorkerLost
SILENCE = 0.2  # seconds of silence after which it asks which server is the primary
INCARNATION = secrets.token_hex(8)  # of this process: one that takes its rank later is another


class Counted(Enum):
    """Whether a server counts a push, as far as its worker knows."""

    NO = "no"
    UNKNOWN = "it was sent and not answered, or only some of its parts count"
    YES = "yes"


@dataclass(eq=False)
class Request:
    """What is asked of a server: all that is needed to ask again, and the answer when it is there.

    ``into``: where the answer belongs, as it comes through the socket; ``write``: what puts a push into shared memory,
    done once, before it is sent; ``pieces``: where the parts of an answer belong that may lie in shared memory;
    ``counted``: whether a push is; ``until``: when it need not be sent any more;
    ``server``: the number of the one that is asked; ``places``: of the keys of a push in the lists of the call.
    """

    op: Op
    entries: Sequence[Entry] = ()
    metadata: dict | None = None
    payload: memoryview = NOTHING
    into: memoryview = NOTHING
    write: Callable[[], object] | None = None
    pieces: Sequence[Tensor] = ()
    number: int = 0
    answer: Frame | None = None
    error: KVError | None = None
    counted: Counted = Counted.NO
    until: float = math.inf
    server: int = 0
    places: Sequence[int] = ()
    done: Once = field(default_factory=Once)

    def fail(self, error: KVError) -> None:
        self.error = error
        self.done.set()


class Pace(NamedTuple):
    """Seconds: for a handshake; at most between two attempts to connect; for a goodbye; at least, until it is lost."""

    greeting: float
    pause: float
    parting: float
    patience: float


ONE = Pace(handshake.SECONDS, 0.5, 1.0, 0.0)
SEVERAL = Pace(1.0, 0.02, 3.0, 2.0)  # in between a silent primary is replaced


class ServerClient:
    """The connection to slot ``number``: to the server at ``address``, or to the primary, which the ``register`` knows.

    With several servers, a synchronous push that was answered counts in a round that may begin anew with another
    primary. So the client has a copy until the round is *committed*: all members have it. It is one push of each part,
    because the next push of a part counts only after that.
    """

    def __init__(
        self,
        number: int,
        address: "tuple[str, int] | str | None",
        rank: int,
        *,
        secret: bytes = b"",
        run: str = "",
        deadline: float = DEADLINE,
        incarnation: str = INCARNATION,
        shared_buffer: SharedBuffer | None = None,
        register: Register | StoreRegister | None = None,
    ):
        self.number, self.address, self.deadline = number, address, require_seconds("deadline", deadline, Refused)
        self._register, self._view, self._pace = register, 0, SEVERAL if register else ONE
        self._uncommitted: dict[int, tuple[int, Request]] = {}  # copies of counted pushes, by part, with their rounds
        self.keys: Callable[[], Sequence] = tuple  # returns those of the slot, for the error if it is lost
        until = time.monotonic() + self.deadline
        while register and not self._view:
            self._aim()
            if not self._view and time.monotonic() > until:
                raise ServerLost(text("store.no-view", slot=number), (number,))
        address = self.address
        self._secret, self._hello = secret, {"rank": rank, "run": run, "incarnation": incarnation}
        if shared_buffer and isinstance(address, str):
            self._hello["memory"] = shared_buffer.lent
        # What has been read in the server's memory, from when to when, which has not been reported.
        self._read: deque[tuple[int, float, float]] = deque()
        if not secret and not isinstance(address, str):
            whose = "may be another user's" if loopback(address) else "is on another host"
            raise Refused(
                f"server {number} at {address[0]} {whose}: the secret of the run is in the file that {handshake.FILE} "
                f"names, or in {handshake.VARIABLE}"
            )
        self._pending: dict[int, Request] = {}
        self._leaving: Request | None = None  # which is being sent, and
        self._coming: Request | None = None  # whose answer is being put where it belongs
        self._goodbye: Request | None = None
        self._asked, self._open, self._heard = 0, True, own_time()
        self._hearing = False  # an answer comes, which may take longer than the deadline
        self._channel: Channel | None = None
        self._lost: KVError | None = None
        self._sending, self._state = threading.Lock(), threading.RLock()
        self._channel, self.welcome = self._connect(own_time() + self.deadline)
        self._commits_later = register is not None and self.welcome["kind"] == "dist_sync"
        name = f"d2lps connection to server {number}"
        self._listener = threads.start(name, self._listen)
        threading.Thread(target=self._live, daemon=True, name=name).start()

    def ask(self, request: Request) -> Request:
        """Send it; :meth:`wait` for its answer. Raises Interrupted if its caller gives it up before it is its turn."""
        while not self._sending.acquire(timeout=0.05):  # what another call sends may take its time
            if request.done.is_set() or time.monotonic() > request.until:
                raise Interrupted("its caller gave it up")
        try:
            with self._state:
                if self._lost:
                    raise copy.copy(self._lost)  # each call says what became of its own keys
                if not self._open:
                    raise Refused(text("store.closed"))
                if request.done.is_set():
                    raise Interrupted("its caller gave it up")
                self._asked += 1
                request.number = self._asked
                self._pending[request.number] = request
            try:
                self._report_read()
                self._send(self._channel, request)
            except BaseException:
                with self._state:  # it would be asked again
                    self._pending.pop(request.number, None)
                raise
        finally:
            self._sending.release()
        return request

    @property
    def follows(self) -> bool:
        """Whether the slot may have several servers, so that this connection follows the primary."""
        return self._register is not None

    @property
    def seen(self) -> View:
        """The newest known view, with the numbers of its servers."""
        if not self._register:
            return View(1, (self.number,))
        view = self._register.view(self.number)
        return View(view.number, tuple(number for number, *_ in view.members))

    @property
    def shares(self) -> bool:
        """Whether the server and this worker can read each other's memory."""
        return self._channel.remote is not None

    def wait(self, request: Request, until: float) -> Frame:
        """Return the answer. Raises the error of the server, ServerLost, Interrupted, or later Timeout or Unknown."""
        left, ran = max(0.0, until - time.monotonic()), own_time()
        over = not request.done.wait(left)
        # Perhaps this process stood still: it hears soon what came meanwhile.
        stood = left - (own_time() - ran) > self.deadline * POLL
        if over and (stood or self._silent > self.deadline / 2):  # or the server is stopped, or gone: soon known
            left = max(self.deadline - self._silent, self.deadline * POLL)
            over = not request.done.wait(min(left, self.deadline / 2))
        if request.answer is None and request.error is None:
            silent = self._silent  # before the connection is made anew, should this request stand in its way
            self.forget(request)
        if request.error is not None:
            raise copy.copy(request.error)
        if request.answer is None:
            raise self._too_late(request, silent) if over else Interrupted("its caller gave it up")
        return request.answer

    def cancel(self, request: Request) -> None:
        """End the waiting for it, from any thread, also from one that is interrupted."""
        request.done.set()
        if request is self._leaving:
            self._channel.close()

    def forget(self, request: Request) -> None:
        """Give it up: when this returns, nothing reads what it sends, or writes where its answer belongs."""
        with self._state:
            self._pending.pop(request.number, None)
            request.done.set()  # nor is it sent, where it was not yet
            self._forgotten(request)
            # The connection is made again. A push that waits for its round would keep back what is asked next.
            waits = request.op in PUSHES and request.counted is Counted.UNKNOWN
            if request is self._leaving or request is self._coming or waits:
                self._channel.close()
        until = time.monotonic() + self.deadline
        while (request is self._leaving or request is self._coming) and time.monotonic() < until:
            time.sleep(0.001)

    def end(self, error: KVError) -> None:
        """Say goodbye. Requests after this one raise ``error``."""
        self.leave()
        self._give_up(error)

    def leave(self) -> None:
        """Say goodbye, which :meth:`close` waits for."""
        if self._open and not self._lost and self._goodbye is None:
            self._goodbye = Request(Op.BYE, until=time.monotonic() + min(self._pace.parting, self.deadline))
            with suppress(KVError):
                self.ask(self._goodbye)

    def close(self) -> None:
        """Say goodbye, and hang up."""
        try:
            self.leave()
            if self._goodbye and not self._lost:
                self._goodbye.done.wait(max(0.0, self._goodbye.until - time.monotonic()))
        finally:  # also where that is interrupted
            self.hang_up()
        if threading.current_thread() is not self._listener:  # at its end Python would abort a thread within torch
            self._listener.join(1.0)

    def hang_up(self) -> None:
        """End the connection without a goodbye, as the end of a process that is killed does."""
        self._open = False
        self._channel.close()
        self._fail(KVError(text("store.closed-meanwhile")))

    @property
    def _silent(self) -> float:
        return 0.0 if self._hearing else own_time() - self._heard  # the channel ends a transfer that stands still

    def _too_late(self, request: Request, silent: float) -> KVError:
        seconds = f"{self.deadline:g}"
        if silent > max(self.deadline, self._pace.patience):
            self._give_up(self._server_lost(text("store.silent", silent=f"{silent:.1f}", deadline=seconds)))
            return copy.copy(self._lost)
        said = {"server": self.number, "op": request.op.name.lower(), "seconds": seconds}
        if request.counted is Counted.UNKNOWN:
            return Unknown(text("store.unknown", **said))
        return Timeout(text("store.late", **said))

    def _listen(self) -> None:
        while self._open:
            channel = self._channel
            try:
                while self._open:
                    if frame := channel.receive(idle=True):
                        self._heard, self._hearing = own_time(), True
                        self._answered(channel, frame)
                        self._heard, self._hearing = own_time(), False
            except Broken as error:
                self._hearing = False
                channel.close()
                if channel.remote:
                    channel.remote.close()
                left = self._goodbye and self._goodbye.done.is_set()
                if self._lost or left or self._open and not self._reconnect(str(error)):
                    return
        self._channel.close()  # it may have been made again while this was closed

    def _answered(self, channel: Channel, frame: Frame) -> None:
        with self._state:
            request = self._coming = self._pending.get(frame.number)
        try:
            if request is None or frame.op not in (Op.OK, Op.DATA, Op.ERROR):
                if frame.shared:  # the server need not keep what is not read
                    self._read.append((frame.number, time.monotonic(), time.monotonic()))
                channel.skip(frame)
                return
            failed = frame.op == Op.ERROR
            request.counted = counted_in_answer(request.entries, frame.metadata) if failed else Counted.YES
            if frame.op == Op.OK and request.op == Op.PUSHPULL:
                if request.done.is_set():
                    self._forgotten(request)
                return  # it is counted; what it pulls comes when it is there
            if frame.op != Op.DATA:
                channel.skip(frame)
                request.error = as_error(frame.metadata) if frame.op == Op.ERROR else None
            elif frame.shared:
                self._copy_shared(channel, frame, request)
            else:
                self._receive(channel, frame, request)
            self._finish(request, frame)
        except Broken:
            raise
        except Exception as error:  # whatever it is, this thread goes on
            request.error = KVError(f"what server {self.number} answers cannot be put where it belongs: {error}")
            self._finish(request, frame)
            raise Broken("an answer was not taken to its end") from error
        finally:
            self._coming = None

    def _finish(self, request: Request, frame: Frame) -> None:
        if request.op in PUSHES or request.op == Op.PULL:
            if frame.op == Op.DATA:
                self._committed(request)
            elif request.counted is Counted.YES:
                self._copy(request)
        with self._state:
            self._pending.pop(frame.number, None)
        request.answer = frame
        request.done.set()

    def _receive(self, channel: Channel, frame: Frame, request: Request) -> None:
        """Receive an answer from the socket, directly where it belongs, or by way of a buffer."""
        sizes = [piece.nbytes for piece in request.pieces]
        if sizes or request.op == Op.STATE and not request.into:  # that, or how much it is, the server says
            request.into = memoryview(bytearray(sum(sizes) if sizes else frame.payload))
        if frame.payload != len(request.into):
            channel.skip(frame)
            expected = f"instead of {len(request.into)}"
            request.error = Refused(f"server {self.number} gives {frame.payload} bytes {expected}")
            return
        channel.into(frame, request.into)
        if sizes and frame.payload:
            parts = torch.frombuffer(request.into, dtype=torch.uint8).split(sizes)
            self._put(request, [part.view(piece.dtype) for part, piece in zip(parts, request.pieces, strict=True)])

    def _copy_shared(self, channel: Channel, frame: Frame, request: Request) -> None:
        """Copy an answer from the memory of the server, which may use it again when that is reported to it."""
        start, offsets = time.monotonic(), torch.empty(frame.payload // 8, dtype=torch.int64)
        channel.into(frame, raw(offsets))
        values = [
            channel.remote and channel.remote.tensor(offset, piece.numel(), piece.dtype)
            for offset, piece in zip(offsets.tolist(), request.pieces, strict=False)
        ]
        if len(values) != len(request.pieces) or any(value is None for value in values):
            raise Broken("the server says that a value lies where it lends no memory")
        self._put(request, values)
        self._read.append((frame.number, start, time.monotonic()))
        if self.welcome.get("record") and self._sending.acquire(blocking=False):
            try:
                if channel.roomy:  # this thread hears, and must not wait for a way out
                    self._report_read()
            finally:
                self._sending.release()

    @staticmethod
    @torch.inference_mode()  # as what it belongs to may have been made there
    def _put(request: Request, values: Sequence[Tensor]) -> None:
        for piece, value in zip(request.pieces, values, strict=True):
            piece.copy_(value)

    # ---- sending; ``_sending`` is held

    def _send(self, channel: Channel, request: Request) -> None:
        with self._state:
            if request.number and request.number not in self._pending:
                return  # it was forgotten
            self._leaving = request
            if request.op in PUSHES and request.counted is Counted.NO:
                request.counted = Counted.UNKNOWN
        shared = request.write is not None or request.op == Op.PULL and bool(request.pieces)
        try:
            channel.send(request.op, request.number, request.entries, request.metadata, request.payload, shared)
        except Broken:
            channel.close()  # the thread that listens makes it again and asks again
        finally:
            self._leaving = None

    def _report_read(self) -> None:
        """Report what was read, with the next request: the server needs the memory when the next round closes."""
        if self._read:
            read = [self._read.popleft() for _ in range(len(self._read))]  # while another thread may append
            self._send(self._channel, Request(Op.READ, metadata={"read": read}))

    def _live(self) -> None:
        """Send heartbeats, and ask for the view if the primary is silent, or has not been asked for a while."""
        looked = alive = time.monotonic()
        pause = self.deadline * POLL
        while self._open and not self._lost:
            time.sleep(min(SILENCE, pause) if self._register else pause)
            silent = (self._pending or self._uncommitted) and self._silent > SILENCE
            if self._register and (silent or time.monotonic() - looked > self.deadline * HEARTBEAT):
                looked = time.monotonic()
                self._register.ask(self.number, self._take_view)
            if time.monotonic() - alive > pause and self._sending.acquire(blocking=False):
                alive = time.monotonic()
                try:
                    if self._open:
                        self._report_read()
                        self._send(self._channel, Request(Op.ALIVE))
                finally:
                    self._sending.release()

    def _take_view(self, view: View) -> None:
        """Take the answer of the register. If there is a new primary, the thread that listens connects to it."""
        if view.number > self._view and view.members[0][2] != self.address:
            self._channel.close()

    def _connect(self, until: float) -> tuple[Channel, dict]:
        """Return a channel, and the server's welcome. Raises ServerLost after ``until``, or Refused."""
        pause, reason = 0.01, "no server listens there"
        while True:
            self._aim()
            try:
                left = max(0.05, min(self._pace.greeting, until - own_time()))
                channel, welcome = handshake.connect(self.address, left, self._secret, self._hello)
                channel.patience(max(self.deadline, 1.0))
                channel.borrow(welcome.get("memory"))
                if self._register:  # another server may have been silent
                    self._heard = own_time()
                return channel, welcome
            except (Broken, OSError) as error:
                reason = why(error) or reason
            if own_time() + pause > until:
                where = self.address if isinstance(self.address, str) else f"{self.address[0]}:{self.address[1]}"
                raise ServerLost(text("store.unreachable", server=self.number, where=where, why=reason), (self.number,))
            time.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))  # with jitter: all come back at once otherwise
            pause = min(2 * pause, self._pace.pause)

    def _aim(self) -> None:
        """Look, before each attempt to connect, where the primary listens."""
        view = self._register and self._register.view(self.number)
        if view is not None and view.number > self._view:
            self._view, self.address = view.number, view.members[0][2]

    def _reconnect(self, why: str) -> bool:
        """Make a new connection, and ask everything again that is not answered, in its order."""
        try:
            channel, _ = self._connect(own_time() + max(self.deadline, self._pace.patience))
        except KVError as error:
            self._give_up(self._server_lost(f"{why}; {error}"))
            return False
        self._sending.acquire()  # until all is asked again
        with self._state:
            self._pending |= {request.number: request for _, request in self._uncommitted.values()}
            pending, self._channel = [self._pending[number] for number in sorted(self._pending)], channel
            self._read.clear()  # the server has forgotten the old connection
        # Not in this thread, which hears: a server that cannot get rid of its answers takes no more requests.
        try:
            threads.start(self._listener.name, self._ask_again, channel, pending)
        except RuntimeError:  # there is no thread left
            self._ask_again(channel, pending)
        return True

    def _ask_again(self, channel: Channel, pending: Sequence[Request]) -> None:
        try:
            for request in pending:
                self._send(channel, request)
        finally:
            self._sending.release()

    def _server_lost(self, why: str) -> ServerLost:
        if not self._register:
            return ServerLost(text("store.server-lost", server=self.number, why=why), (self.number,))
        keys = tuple(self.keys())
        names = ", ".join(map(repr, keys[:8])) + (", …" if len(keys) > 8 else "")
        return DataLost(text("store.data-lost", slot=self.number, why=why, keys=names), (self.number,), keys)

    # ---- pushes that count, and are not committed yet

    def _forgotten(self, request: Request) -> None:
        """Keep a push that counts, although the caller waits for its answer no more."""
        if request.op in PUSHES and request.counted is Counted.YES and request.answer is None:
            self._copy(request)

    def _copy(self, request: Request) -> None:
        """Keep a copy: the caller may change the tensors when its push returns."""
        if not self._commits_later:
            return  # it was answered when it was committed
        parts, rounds = request.entries["part"].tolist(), request.entries["round"].tolist()
        if all(self._uncommitted.get(part, (0, None))[0] >= round_ for part, round_ in zip(parts, rounds, strict=True)):
            return  # it was sent again, and answered again
        payload = memoryview(bytearray(request.payload))
        copied = Request(Op.PUSH, request.entries, payload=payload, number=request.number, counted=Counted.YES)
        copied.done.set()
        with self._state:
            for part, round_ in zip(parts, rounds, strict=True):
                self._uncommitted[part] = round_, copied

    def _committed(self, request: Request) -> None:
        if self._uncommitted:
            entries = request.entries
            with self._state:
                for part, round_ in zip(entries["part"].tolist(), entries["round"].tolist(), strict=True):
                    if self._uncommitted.get(part, (round_ + 1,))[0] <= round_:
                        del self._uncommitted[part]

    def _give_up(self, error: KVError) -> None:
        with self._state:
            self._lost = self._lost or error
        self._fail(self._lost)
        self._channel.close()

    def _fail(self, error: KVError) -> None:
        """End all requests that are not answered, with ``error``."""
        with self._state:
            pending, self._pending = list(self._pending.values()), {}
        for request in pending:
            request.fail(error)


def ask_in_turn(client: ServerClient, requests: list[Request]) -> None:
    """Send one after the other; what cannot be sent has failed."""
    for request in requests:
        try:
            if request.write is not None:
                request.write()
            client.ask(request)
        except Interrupted:
            continue  # who waited for it knows why it does not any more
        except KVError as error:
            request.fail(error)
        except Exception as error:
            request.fail(KVError(f"what is asked of server {client.number} cannot be sent: {error}"))


def counted_in_answer(entries: Sequence, metadata: dict) -> Counted:
    """Return what an error answer says of the ``entries`` of a push."""
    places = metadata.get("counted") or ()
    if 0 < len(places) < len(entries):
        return Counted.UNKNOWN
    return Counted.YES if places else Counted.NO


def as_error(metadata: dict) -> KVError:
    """Return the error that a server names in an answer. An unknown name becomes a KVError."""
    sentence, kind = str(metadata.get("sentence", "")), metadata.get("kind")
    with suppress(Exception):  # whatever a server says, it is an error
        sentence = str(unpacked(metadata["packed"]))
    if kind == "WorkerLost":
        return WorkerLost(sentence, tuple(rank for rank in metadata.get("ranks", ()) if isinstance(rank, int)))
    return KINDS.get(kind, KVError)(sentence)
