"""A server of the store: it listens, hears each worker in a thread of its own, and answers in another.

What a worker asks for that cannot be done is an error to that worker alone; what is no frame of ours closes that
connection alone. Answers wait in no queue of copies: they name values, which are never changed.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import torch

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.server.connected import Connected
from d2lps.kvstore.server.rounds import Table
from d2lps.kvstore.wire import Broken, Channel, handshake, tls
from d2lps.kvstore.wire.arena import SHARED, arena
from d2lps.kvstore.wire.handshake import loopback

ADDRESS = ("127.0.0.1", 0)
STRANGERS = 32  # connections at once that have not yet said who they are


class Server:
    """One server, which listens from the moment it is made until :meth:`close`.

    table
        what it holds (:class:`Table`).
    address
        (host, port), port 0 for any that is free, or the path of a Unix socket. The default is reached from this host
        only; any other address needs a ``secret`` of 16 bytes or more, known to the workers, or ``certificates``.
    run
        a name for this run: workers of another are sent away.
    number
        which of the servers this is.
    certificates
        what it shows and asks for by TLS, which then covers what would need a code: with a secret both are asked for.
    """

    def __init__(
        self,
        table: Table,
        address: "tuple[str, int] | str" = ADDRESS,
        *,
        secret: bytes = b"",
        run: str = "",
        number: int = 0,
        certificates: tls.Certificates | None = None,
    ):
        if not secret and not certificates and not loopback(address):
            raise Refused(
                f"a server at {address[0]} can be reached from other hosts: put a secret into the file that "
                f"{handshake.FILE} names, or into {handshake.VARIABLE}; TLS will do, too"
            )
        if certificates and isinstance(address, str):
            raise Refused(f"a server at {address} speaks no TLS: a Unix socket is this user's own, and no wire")
        self._tls = tls.context(certificates, True) if certificates else None
        self.table, self.secret, self.run, self.number = table, secret, run, number
        self._listener = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        try:
            if not isinstance(address, str):
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(socket.SOMAXCONN)
        except OSError as error:
            self._listener.close()
            raise Refused(
                f"server {number} cannot listen at {address} ({error.strerror}): give another address, or "
                "port 0 for any that is free"
            ) from None
        self.address = self._listener.getsockname()
        self.arena = arena() if isinstance(address, str) else None
        if self.arena:
            table.make = self._made
        self._workers: dict[int, Connected] = {}
        self._guests: dict[Channel, None] = {}  # who has not yet said who it is
        self._open = True
        self._lock = threading.Lock()
        for what in (self._accept, self._watch):
            threading.Thread(target=what, daemon=True, name=f"d2lps server {number}").start()

    def close(self) -> None:
        """Stop listening and hang up on everybody."""
        self._open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if isinstance(self.address, str):
            with suppress(OSError):
                os.unlink(self.address)
        for worker in list(self._workers.values()):
            worker.close()
        if self.arena:
            self.arena.close()

    @property
    def busy(self) -> bool:
        """Whether a worker is connected."""
        return any(worker.open for worker in list(self._workers.values()))

    def _made(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Room for a value, where this host's workers can read it if it is large."""
        found = self.arena.tensor(elements, dtype) if elements * dtype.itemsize >= SHARED else None
        return torch.empty(elements, dtype=dtype) if found is None else found

    def _accept(self) -> None:
        while self._open:
            try:
                channel = Channel(self._listener.accept()[0], handshake.SECONDS)
            except OSError:
                if self._open:
                    time.sleep(0.05)  # no file left for another connection: those that are there go on
                continue
            with self._lock:
                if len(self._guests) >= STRANGERS:  # who belongs here needs little time: the oldest one has had most
                    oldest = next(iter(self._guests))
                    del self._guests[oldest]
                    oldest.close()
                self._guests[channel] = None
            try:
                threading.Thread(
                    target=self._meet, args=(channel,), daemon=True, name=f"d2lps server {self.number}"
                ).start()
            except RuntimeError:  # no thread left for another connection
                self._guests.pop(channel, None)
                channel.close()
                time.sleep(0.05)

    def _meet(self, channel: Channel) -> None:
        guard = threading.Timer(handshake.SECONDS, channel.close)  # who sends a byte now and then is no better
        guard.daemon = True
        try:
            guard.start()
            self._tls and tls.as_server(channel, self._tls)
            hello = handshake.as_server(
                channel,
                self.secret,
                lambda hello: self._admit(channel, hello),
                not self._tls and not loopback(self.address),
            )
        except (Broken, Refused, OSError, RuntimeError):  # RuntimeError: no thread left; nested too deeply
            channel.close()
            return
        finally:
            guard.cancel()
            with self._lock:
                self._guests.pop(channel, None)
        channel.patience(max(self.table.deadline, 1.0))
        worker = Connected(self, channel, hello["rank"], hello["incarnation"])
        with self._lock:
            before, self._workers[worker.rank] = self._workers.get(worker.rank), worker
        if before is not None:
            before.close()
        worker.run()

    def _admit(self, channel: Channel, hello: Mapping) -> dict:
        """What is said to a worker that may come in, whose memory is borrowed where that can be."""
        if sentence := self._refusal(hello):
            raise Refused(sentence)
        lends = self.arena and channel.borrow(hello.get("memory"))
        return {
            "number": self.number,
            "kind": self.table.kind,
            "workers": self.table.workers,
            "staleness": self.table.staleness,
            "deadline": self.table.deadline,
            "memory": self.arena.lent if lends else None,
            "record": bool(self.table.record),
        }

    def _refusal(self, hello: Mapping) -> str | None:
        rank, live = hello["rank"], self._workers.get(hello["rank"])
        if hello.get("run") != self.run:
            return f"worker {rank} belongs to run {hello.get('run')!r}, this server to {self.run!r}"
        if isinstance(rank, bool) or not 0 <= rank < self.table.workers:
            return f"there is no worker {rank}: they are 0 to {self.table.workers - 1}"
        if live is not None and live.incarnation != hello.get("incarnation"):
            return f"there is a worker {rank} already: each rank is one process"
        if not isinstance(hello.get("incarnation"), str):
            return "a worker says which incarnation of its rank it is"
        return None

    def gone(self, worker: "Connected", why: str, left: bool, silent: bool) -> None:
        """The connection of ``worker`` has ended; unless it was silent before, it has a moment to come back."""
        if left or silent:
            self.table.lose(worker.rank, why, left)
            return
        until = time.monotonic() + min(1.0, self.table.deadline / 2)
        while self._open and time.monotonic() < until:
            if self._workers.get(worker.rank) is not worker:
                return  # it is back
            time.sleep(0.02)
        if self._open and self._workers.get(worker.rank) is worker:
            self.table.lose(worker.rank, why)

    def _watch(self) -> None:
        """Who says nothing for the whole deadline is lost, and who waits longer is told so."""
        while self._open:
            time.sleep(min(0.25, self.table.deadline / 8))
            self.table.late()
            for worker in list(self._workers.values()):
                silent = time.monotonic() - worker.heard
                if worker.open and not worker.working and silent > self.table.deadline:
                    worker.end(f"silent for {silent:.1f} s")
