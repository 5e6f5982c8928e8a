"""A child process with a pipe to its parent: JSON both ways, and each end notices when the other ends.

The processes of MXNet import this module, so it must not import torch. Nothing from a pipe is unpickled.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe


class ChildProcess:
    """A process ``python -m module`` that does not receive the Ctrl-C of its parent.

    The descriptors ``keeps`` stay open in it.
    """

    def __init__(
        self,
        module: str,
        environment: dict[str, str] | None = None,
        stderr: int | None = None,
        keeps: Sequence[int] = (),
    ):
        self.pipe, child_end = Pipe()
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env=environment,
                pass_fds=keeps,
            )


def pipe_to_parent() -> Connection:
    """Return the end of the pipe in a process that :class:`ChildProcess` has started."""
    return Connection(os.dup(0))


def send(pipe: Connection, message: object) -> None:
    """Send a message. Raises ConnectionError if the other end has gone."""
    pipe.send_bytes(json.dumps(message).encode())


def receive(pipe: Connection) -> dict:
    """Receive the next message. Raises EOFError or ConnectionError if the other end has gone."""
    return json.loads(pipe.recv_bytes())
