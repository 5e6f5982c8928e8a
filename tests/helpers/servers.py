"""Server processes forked off the one that has imported torch, as ranks are: Python and torch need not start again.

One that is started as a user's store does it, with ``python -m``, is in the tests under torchrun.
"""

import multiprocessing
import os
import runpy
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, reduction, spawn
from types import SimpleNamespace

import pytest

from d2lps.kvstore import child
from helpers.ranks import FORKED

SERVER = "d2lps.kvstore.server"


class Descriptor:
    """A descriptor that is open in the process that unpickles it, too."""

    def __init__(self, number: int):
        self.number = number

    def __getstate__(self):
        return reduction.DupFd(self.number)

    def __setstate__(self, duplicate):
        self.number = duplicate.detach()


class Forked:
    """What a store needs of :class:`subprocess.Popen`, for the command ``python -m d2lps.kvstore.server``."""

    def __init__(
        self,
        stdin: int,
        stdout: int,
        stderr: int | None,
        start_new_session: bool,
        env: Mapping[str, str] | None,
        pass_fds: Sequence[int],
    ):
        descriptors = [Descriptor(number) for number in (stdin, 2 if stderr is None else stderr, *pass_fds)]
        arguments = descriptors, {**os.environ} if env is None else {**env}
        self._process = FORKED.Process(target=_serve, args=arguments)
        self._process.start()
        multiprocessing.process._children.discard(self._process)  # which this process would wait for at its end
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a server", timeout)
        return code

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


def _serve(descriptors: list[Descriptor], environment: dict[str, str]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    os.dup2(descriptors[0].number, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(descriptors[1].number, 2)
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


def _popen(command: Sequence[str], **options) -> "Forked | subprocess.Popen":
    if command[1:] == ["-m", SERVER]:
        return Forked(**options)
    return subprocess.Popen(command, **options)  # of MXNet, whose processes must not have torch


FORKING = SimpleNamespace(Popen=_popen, DEVNULL=subprocess.DEVNULL)


def fork_servers() -> None:
    """Let this process, which has been forked off itself, fork the servers that its store starts."""
    child.subprocess = FORKING
    forkserver._forkserver.ensure_running = lambda: None  # this process would start another one
    prepare = spawn.get_preparation_data  # without __main__: the server must not run the script of a worker
    spawn.get_preparation_data = lambda name: {
        key: value for key, value in prepare(name).items() if not key.startswith("init_main")
    }


@contextmanager
def servers_forked():
    """Do as :func:`fork_servers` in the process of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", FORKING)
        yield
