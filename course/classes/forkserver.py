"""The process that starts the processes of answers: it has imported everything they need, and no judge.

``python -m course.classes.forkserver SETTINGS`` receives connections on its standard input, a socket, and forks twice
for each: a keeper, which ends the answer's process when the judge closes its socket, and the answer's process, which is
confined before it reads the first frame.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import torch

import d2lps
from course.classes import landlock, sandbox
from course.classes.inside import Inside
from course.classes.line import Line
from course.classes.watch import watch


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    warm()
    gc.freeze()  # so that forked processes share these objects
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that has started this one ends it
    requests = socket.socket(fileno=0)
    with suppress(ConnectionError):  # the process that has started this one has ended
        requests.send(b".")  # ready
        _serve(requests, settings)


def _serve(requests: socket.socket, settings: dict) -> None:
    """Start a process for each connection, until no more can come."""
    while True:
        language, ends, _, _ = socket.recv_fds(requests, 2, 2)
        if not language:
            return
        if not os.fork():
            _keep(*ends, language.decode(), settings)
        for end in ends:
            os.close(end)


def warm() -> None:
    """Import what lessons import, and what torch imports when it is first used."""
    for name in d2lps.__all__:
        with suppress(ImportError):
            getattr(d2lps, name)
    (torch.ones(2) + torch.logsumexp(torch.ones(2), 0)).tolist()


def _keep(end: int, life: int, language: str, settings: dict) -> None:
    """Fork the answer's process, kill it when the other end of ``life`` is closed.

    Send its processor seconds, and the signal that ended it or 0.
    """
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(OSError, AttributeError):
            landlock.die_with_parent()
        namespaces = sandbox.own_namespaces()
        child = os.fork()
        if not child:
            _run_answer(end, language, settings, namespaces)
        os.close(end)
        watched = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
        select.select([life, *([] if watched is None else [watched])], [], [])
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
        _, status, took = os.wait4(child, 0)
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        socket.socket(fileno=life).send(json.dumps([took.ru_utime + took.ru_stime, ended_by]).encode())
    finally:
        os._exit(0)


def _run_answer(end: int, language: str, settings: dict, namespaces: set[str]) -> None:
    try:
        with suppress(OSError, AttributeError):
            landlock.die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        line_end = os.dup2(end, 3)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.closerange(4, 4096)
        os.chdir("/")
        os.environ.clear()
        d2lps.speak(language)
        paths = [Path(path) for path in settings["paths"]]
        missing = sandbox.shut_in(paths, namespaces, settings["memory"], settings["seconds"])
        line = Line(socket.socket(fileno=line_end))
        line.say(["return", 0, missing, []])
        Inside(line, watch([*paths, *map(Path, sandbox.DEVICES)])).serve()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
