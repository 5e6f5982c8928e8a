"""Nodes that speak to each other in one process: a thread for each, and one of them runs at a time.

Who is next is chosen, so a run is the same every time, and a deadlock is seen at once: nobody who is not done could
go on. Nodes share nothing: a message is copied on its way, and its bytes are counted.

>>> net = Network(["a", "b"], pick=lambda able: able[0])
>>> told = []
>>> net.play({"a": lambda: net.send("a", "b", "hello"), "b": lambda: told.append(net.recv("b"))}, until=["a", "b"])
>>> told, net.messages
([('a', 'hello')], [Message(src='a', dst='b', nbytes=5)])
"""

import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from d2lps.notebook.grading import Ended, Stopped, deadline, stop_thread

TICK = 0.05  # seconds after which a waiting thread looks again
PATIENCE = 5.0  # seconds of the processor for which a node may go on without a message: far more than it needs


class Message(NamedTuple):
    """That ``nbytes`` went from ``src`` to ``dst``."""

    src: str
    dst: str
    nbytes: int


class Closed(Ended):
    """The run is over: thrown out of send and recv."""


class Deadlock(Exception):
    """Nobody who is not done can go on."""


class Idle(Exception):
    """``node`` neither sends nor receives, and does not return."""

    def __init__(self, node: str):
        super().__init__(node)
        self.node = node


class Unsendable(TypeError):
    """Something in a message that does not travel; its text is the name of its type."""


class Network:
    """The nodes ``names``. ``pick``: those who could go on, in that order → who does."""

    def __init__(self, names: Sequence[str], pick: Callable[[list[str]], str]):
        self.names, self.pick = list(names), pick
        self.messages: list[Message] = []
        self.inbox: dict[str, deque] = {name: deque() for name in names}
        self.waiting: set[str] = set()
        self.done: set[str] = set()
        self._turns = {name: threading.Semaphore(0) for name in names}
        self._back = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._closed = False

    def send(self, node: str, to: str, message: object) -> None:
        """Copy ``message`` into the inbox of ``to``: this never waits. Raises Unsendable."""
        self._open(node)
        copied, nbytes = carried(message)
        self.messages.append(Message(node, to, nbytes))
        self.inbox[to].append((node, copied))
        self._switch(node)

    def recv(self, node: str) -> tuple[str, object]:
        """(sender, message): the oldest message for ``node``, waited for if there is none."""
        self._open(node)
        self.waiting.add(node)
        self._switch(node)
        self.waiting.discard(node)
        return self.inbox[node].popleft()

    def refuse(self, error: Exception) -> None:
        """End the run with ``error``, even if the node catches it."""
        self._error = self._error or error
        raise Closed

    def play(self, programs: Mapping[str, Callable[[], object]], until: Sequence[str]) -> None:
        """Run the programs until those of the nodes ``until`` are done.

        Raises what a program raises, Deadlock if nobody can go on, and Idle if somebody goes on for too long.
        """
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(self._run, name, programs[name]), daemon=True)
            for name in self.names
        ]
        for thread in threads:
            thread.start()
        try:
            while not self.done.issuperset(until):
                able = [
                    name
                    for name in self.names
                    if name not in self.done and (name not in self.waiting or self.inbox[name])
                ]
                if not able:
                    raise Deadlock
                node = self.pick(able)
                self._turns[node].release()
                late = deadline(PATIENCE)
                while not self._back.acquire(timeout=TICK):
                    if late():
                        raise Idle(node)
                if self._error:
                    raise self._error
        finally:
            self._close(threads)

    def _run(self, name: str, program: Callable[[], object]) -> None:
        with contextlib.suppress(Stopped):  # it may come while another error is handled
            try:
                self._wait(name)
                program()
            except Closed:
                pass
            except BaseException as error:
                self._error = self._error or error
            self.done.add(name)
            self._back.release()

    def _switch(self, name: str) -> None:
        self._back.release()
        self._wait(name)

    def _wait(self, name: str) -> None:
        self._turns[name].acquire()
        if self._closed:
            raise Closed

    def _open(self, name: str) -> None:
        if self._closed:  # a program that catches everything and asks again sleeps here, rather than spin
            self._turns[name].acquire(timeout=0.2)
            raise Closed

    def _close(self, threads: list[threading.Thread]) -> None:
        self._closed = True
        for turn in self._turns.values():
            turn.release()
        for thread in threads:
            thread.join(0.2)
            if thread.is_alive():
                stop_thread(thread)


def carried(message: object) -> tuple[object, int]:
    """A copy, and its bytes: 8 for a number, a tensor's and a text's own, nothing for what holds them together."""
    if isinstance(message, torch.Tensor):
        return message.detach().clone(), message.nbytes
    if isinstance(message, str | bytes):
        return message, len(message.encode() if isinstance(message, str) else message)
    if message is None or isinstance(message, bool | int | float):
        return message, 8
    if isinstance(message, tuple | list):
        parts = [carried(each) for each in message]
        kind = tuple if isinstance(message, tuple) else list
        return kind(part for part, _ in parts), sum(nbytes for _, nbytes in parts)
    if isinstance(message, dict):
        parts = [(carried(key), carried(value)) for key, value in message.items()]
        return {key[0]: value[0] for key, value in parts}, sum(key[1] + value[1] for key, value in parts)
    raise Unsendable(type(message).__name__)
