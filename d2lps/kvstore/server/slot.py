"""One server's replica of a slot: it gives messages to the rules of replication, and carries out their effects."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import NamedTuple

from d2lps.kvstore import threads
from d2lps.kvstore.errors import Timeout, server_text
from d2lps.kvstore.replication import Replica, View
from d2lps.kvstore.replication.messages import AddUp, Ask, Join, Name, Propose, Send, Summed
from d2lps.kvstore.server.peers import PULSE, PeerConnection, Peers, refused
from d2lps.kvstore.server.register import NOBODY, Register, StoreRegister
from d2lps.kvstore.threads import own_time
from d2lps.kvstore.wire.frames import Broken

REGISTERED = 1.0  # seconds that a message waits for the first view, at most
LOOK = 1.0  # seconds after which a thread that waits looks again, also if no other thread has woken it
PROBES = 0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05  # seconds before each check if a server listens there


class Slot:
    """Replica ``name`` of slot ``number``, a set of keys that move together; ``core`` has its rules.

    ``name`` is (the server's number, its incarnation, where it listens). ``made(view)`` returns the rules as they are
    at first; ``deposed`` is called when this is not the primary any more. Without a ``register`` it is a group of one,
    whose view never changes.
    """

    def __init__(
        self,
        number: int,
        name: Name,
        made: Callable[[View], Replica],
        register: Register | StoreRegister | None = None,
        peers: Peers | None = None,
        deposed: Callable[[], object] = lambda: None,
    ):
        self.number, self.name, self._made, self._register, self._peers = number, name, made, register, peers
        self._deposed = deposed
        self.alone = register is None  # what is done is committed at once, and no other server may be the primary
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # the commit, or the primary
        self.core, self.open = made(NOBODY), True
        self.led: float | None = None  # since when this is the primary
        self.took_over = False  # from another primary
        self.arriving = False  # a snapshot arrives
        self._depth = 0  # of nested deciding()
        self._ids = count(1)
        self._asked: dict[int, Callable[[NamedTuple], object]] = {}  # by request: the function that gets its answer
        self._commits: deque[tuple[int, Callable[[], object]]] = deque()
        self._connections: dict[Name, PeerConnection] = {}
        self._heard: dict[Name, float] = {}  # when something of other servers came last
        self._seen = self.core.view, 0, 0
        if register:
            threads.start(f"d2lps clock of slot {number}", self._tick)
        else:
            self._take_view(View(1, (name,)))

    def close(self) -> None:
        """End as if the process had been killed."""
        with self.lock:
            self.open = False
            connections, self._connections = [*self._connections.values()], {}
            self._asked.clear()
            self._commits.clear()
            self.changed.notify_all()
        for connection in connections:
            connection.close()

    @property
    def leads(self) -> bool:
        return self.open and self.led is not None

    @property
    def member(self) -> bool:
        return self.name in self.core.view.members

    @contextmanager
    def deciding(self) -> Iterator[Replica]:
        """Yield the rules to this thread alone; carry out their effects in the end. Raises Broken if closed."""
        later: list[Callable[[], object]] = []
        with self.lock:
            if not self.open:
                raise Broken("this server has ended")
            self._depth += 1
            try:
                yield self.core
            finally:
                self._depth -= 1
                if not self._depth:
                    later = self._carry_out()
        for act in later:
            act()

    @contextmanager
    def leading(self) -> Iterator[Replica]:
        """Do as :meth:`deciding`. Raises Broken if this is not the primary: the worker has to ask another server."""
        with self.deciding() as core:
            self.require_lead()
            yield core

    def require_lead(self) -> None:
        if not self.leads:
            raise Broken(f"this server is not the primary of slot {self.number} any more")

    def wait(self, done: Callable[[], object], seconds: float, what: str, missing: Callable[[], list[int]]) -> None:
        """Wait within :meth:`leading` until ``done``; other threads decide meanwhile. Raises Timeout, or Broken."""
        depth, self._depth = self._depth, 0
        try:
            wait_until(self.changed, lambda: done() or not self.leads, seconds, what, missing)
        finally:
            self._depth = depth
        self.require_lead()

    def pause(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait, outside :meth:`leading`, until ``done``, or the seconds are over, or this is not the primary."""
        if not done():
            with self.changed:
                self.changed.wait_for(lambda: done() or not self.leads, seconds)

    def ask(self, worker: int, request: NamedTuple, reply: Callable[[NamedTuple], object] | None = None) -> int:
        """Give a request to the rules, within :meth:`leading`. Returns its number; ``reply`` gets the answer."""
        number = next(self._ids)
        if reply:
            self._asked[number] = reply
        request = type(request)(self.core.view.number, number, *request[2:])
        now = 0.0 if self.alone else own_time()  # no other server is ever silent
        self.core.receive(("worker", worker), request, now)
        return number

    def forget(self, worker: int, number: int) -> None:
        """Forget a request: no answer to it is wanted any more."""
        with self.lock:
            self._asked.pop(number, None)
            self.core.forget(("worker", worker), number)

    def when_committed(self, act: Callable[[], object]) -> None:
        """Call ``act`` when all that was done here until now is committed, or never if it will not be."""
        if self.alone:
            self.require_lead()
            act()
            return
        with self.leading() as core:
            self._commits.append((core.seq, act))

    def hear(self, other: Name, messages: Iterable[NamedTuple]) -> None:
        """Give messages of another server to the rules, after the register has answered with the first view.

        Raises Broken if it does not answer; then the messages are sent again.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: self.core.view != NOBODY or not self.open, REGISTERED):
                raise Broken("the register of views does not answer")
        with self.deciding() as core:
            for message in messages:
                core.receive(other, message, own_time())

    def note_heartbeat(self, other: Name) -> None:
        """Note that another server lives, without a lock."""
        self._heard[other] = own_time()

    def lost_connection(self, other: Name) -> None:
        """Take another server for dead if a connection with it has ended, and it does not listen any more."""
        for pause in PROBES:  # a process that is killed closes one socket after the other
            time.sleep(pause)
            if not self.open:
                return
            if refused(other):
                self._suspect(other)
                return

    def look(self) -> None:
        """Ask the register for the view."""
        self._register.ask(self.number, self._take_view)

    # ---- effects of the rules

    def _carry_out(self) -> list[Callable[[], object]]:
        """Carry out the effects; return those that have to wait until other threads may decide."""
        later: list[Callable[[], object]] = []
        if not self.open:
            return later
        connections = set()
        for effect in self.core.take():
            if isinstance(effect, Send):
                if effect.to[0] == "worker":
                    reply = self._asked.pop(getattr(effect.message, "id", None), None)
                    if reply:
                        later.append(partial(reply, effect.message))
                elif not (self.arriving and isinstance(effect.message, Join)):
                    connections.add(connection := self._connection(effect.to))
                    connection.put(effect.message)
            elif isinstance(effect, AddUp):
                later.append(partial(self._add_up, effect))
            elif isinstance(effect, Propose):
                view = View(effect.number, effect.members)
                later.append(partial(self._register.propose, self.number, view, self._take_view))
            elif isinstance(effect, Ask):
                later.append(self.look)
        core = self.core
        while self._commits and self._commits[0][0] <= core.commit:
            later.append(self._commits.popleft()[1])
        if core.is_primary != (self.led is not None):
            self.led = own_time() if core.is_primary else None
            self.took_over = core.view.number > 1
            if self.led is None:
                self._asked.clear()
                self._commits.clear()
                later.append(self._deposed)
        if self._seen != (core.view, core.commit, core.seq):
            self._seen = core.view, core.commit, core.seq
            self.changed.notify_all()
        return [*(connection.pump for connection in connections), *later]

    def _add_up(self, asked: AddUp) -> None:
        """Add a gradient while other threads decide."""
        current = asked.round
        total = self.core.add(current.total, asked.gradient, current.complete)
        with suppress(Broken), self.deciding() as core:
            core.receive(self.name, Summed(asked.part, current, total), own_time())

    def _take_view(self, view: View) -> None:
        """Take an answer of the register."""
        try:
            with self.deciding():
                if self.core.view == NOBODY and view.number == 1:
                    self.core = self._made(view)  # it is a member from the beginning
                else:
                    self.core.receive("register", view, own_time())
        except Broken:
            pass

    def _connection(self, other: Name) -> PeerConnection:
        connection = self._connections.get(other)
        if connection is None or not connection.open:
            connect = partial(self._peers.connect, self.number, self.name, other)
            opened, refused = partial(self._opened, other), partial(self._suspect, other)
            connection = self._connections[other] = PeerConnection(connect, opened, refused)
        return connection

    def _opened(self, other: Name, connection: PeerConnection) -> None:
        with self.deciding() as core:
            connection.begin()
            if core.is_primary and other in core.followers:
                core.repeat(other)

    def _suspect(self, other: Name) -> None:
        try:
            with self.deciding() as core:
                if other in core.view.members or other == core.learner:
                    core.suspect(other)
                    core.tick(own_time())
        except Broken:
            pass

    # ---- time

    def _tick(self) -> None:
        self.look()
        while self.open:
            with self.changed:
                self.changed.wait_for(lambda: not self.open, PULSE if self.core.view.number else PULSE / 10)
            try:
                with self.deciding() as core:
                    for other in [*self._heard]:
                        core.hear(other, self._heard.pop(other))
                    core.tick(own_time())
                    wanted = {*core.view.members, core.learner}
                    for other in [name for name in self._connections if name not in wanted]:
                        if self._connections[other].idle:
                            self._connections.pop(other).close()
            except Broken:
                return


def workers(ranks: Iterable[int]) -> str:
    """Return the sentence's part that names workers."""
    ranks = list(ranks)
    if len(ranks) == 1:
        return server_text("store.server.worker", ranks=ranks[0])
    return server_text("store.server.workers", ranks=", ".join(map(str, ranks)))


def over(what: str, seconds: float, missing: list[int]) -> str:
    """Return the sentence for a wait that was too long: which wait, and for which workers."""
    if missing:
        return server_text("store.server.missing", what=what, seconds=f"{seconds:g}", workers=workers(missing))
    return server_text("store.server.over", what=what, seconds=f"{seconds:g}")


def wait_until(
    condition: threading.Condition,
    done: Callable[[], object],
    seconds: float,
    what: str,
    missing: Callable[[], list[int]],
) -> None:
    """Wait until ``done``. Raises Timeout with the workers that are ``missing`` for ``what``."""
    end = time.monotonic() + seconds
    while not done():
        left = end - time.monotonic()
        if left <= 0:
            raise Timeout(over(what, seconds, missing()))
        condition.wait(min(LOOK, left))
