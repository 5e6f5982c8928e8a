"""A process that is started with a line to the one that started it: JSON both ways, and each hears when the other ends.

It is imported by what runs MXNet, and so not by way of torch. What comes over a line is never unpickled.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe


class ChildProcess:
    """``python -m module``, out of the way of Ctrl-C, which is for the process that starts it.

    ``keeps``: descriptors that stay open in it.
    """

    def __init__(
        self,
        module: str,
        environment: dict[str, str] | None = None,
        stderr: int | None = None,
        keeps: Sequence[int] = (),
    ):
        self.line, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env=environment,
                pass_fds=keeps,
            )


def line_to_parent() -> Connection:
    """In a process that :class:`ChildProcess` has started: its end of the line."""
    return Connection(os.dup(0))


def send(line: Connection, message: object) -> None:
    """Raises ConnectionError where the other end has gone."""
    line.send_bytes(json.dumps(message).encode())


def receive(line: Connection) -> object:
    """The next message. Raises EOFError or ConnectionError where the other end has gone."""
    return json.loads(line.recv_bytes())
