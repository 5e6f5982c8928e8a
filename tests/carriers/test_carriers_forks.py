"""A rank that forks: its child, however it ends, closes nothing of its parent, and no other rank notices."""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest
from helpers.scripts import SECONDS, USUAL

SCRIPT = """
import importlib.util, multiprocessing, os, signal, sys, time
import torch
from torch.utils.data import DataLoader
from d2lps import Processes, SharedMemory, kvstore, ring, run
from d2lps.carriers.rendezvous import ProcessesError

PATIENCE = 60.0

def end_of(child):
    until = time.monotonic() + PATIENCE
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.01)
    if ended[0]:
        return os.waitstatus_to_exitcode(ended[1])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"

def leaves(thing, use):  # Python destroys all objects
    return end_of(child) if (child := os.fork()) else sys.exit(0)

def closes(thing, use):
    if child := os.fork():
        return end_of(child)
    with thing:
        pass
    os._exit(0)

def uses(thing, use):
    if child := os.fork():
        return end_of(child)
    try:
        use(thing)
    except (ProcessesError, kvstore.Refused) as error:
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)

def starts_a_process(thing, use):
    process = multiprocessing.get_context("fork").Process(target=bool)
    process.start()
    process.join(PATIENCE)
    return "hangs" if process.exitcode is None else process.exitcode

def loads(thing, use):
    return len(list(DataLoader(range(4), num_workers=1))) - 4

def adds(carrier):
    gradient = torch.ones(1000) * (carrier.rank + 1)
    run(ring(carrier.names), gradient, carrier)
    assert gradient.unique().tolist() == [3.0]

def pushes(store):
    store.pushpull("w", torch.ones(1000), out=(out := torch.empty(1000)))
    store.barrier()
    assert len(out.unique()) == 1, out

def made(**options):
    store = kvstore.create("dist_sync", deadline=10.0, **options)
    store.init("w", torch.zeros(1000))
    return store

THINGS = {
    "Processes": (lambda: Processes(deadline=10.0), adds),
    "SharedMemory": (lambda: SharedMemory(deadline=10.0), adds),
    "unix": (lambda: made(joining=60.0), pushes),
    "tcp": (lambda: made(joining=60.0, transport="tcp"), pushes),
    "replicas": (lambda: made(joining=60.0, replicas=1), pushes),
}
if importlib.util.find_spec("mxnet"):
    THINGS["mxnet"] = lambda: made(engine="mxnet"), pushes

for name, (make, use) in THINGS.items():
    with make() as thing:
        use(thing)
        for way in leaves, closes, uses, starts_a_process, loads:
            status = way(thing, use)
            try:
                use(thing)
            except Exception as error:
                status = f"{status}, {type(error).__name__}: {error}"
            if status:
                raise SystemExit(f"{name}: a child of rank {thing.rank} {way.__name__}: {status}")
    print(f"{name} well\\n", end="", flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "forks.py"
    path.write_text(SCRIPT, "utf-8")
    return path


def test_child_of_a_rank_closes_nothing(script):
    """Also where rank 0 holds the store in which they meet, as without torchrun."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    inherited = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_USE_AGENT_STORE"}
    where = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "D2LPS_SECRET": "of this test alone",
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=inherited | USUAL | where | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        results = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    things = ["Processes", "SharedMemory", "unix", "tcp", "replicas"] + ["mxnet"] * (find_spec("mxnet") is not None)
    assert [output.splitlines() for output, _ in results] == [[f"{name} well" for name in things]] * 2, results
    assert [process.returncode for process in started] == [0, 0], results
