"""A forked child that ends normally takes nothing of its parent with it: it runs all that Python runs at exit."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.scripts import SECONDS, USUAL

ROOT = Path(__file__).parents[2]

SCRIPT = """
import os, signal, sys, time
from contextlib import ExitStack, suppress
from operator import attrgetter
from pathlib import Path

import torch
import d2lps
from d2lps import Processes, SharedMemory, cluster, kvstore, ring, run
from d2lps.carriers import segments
from helpers import ranks, small_book

def small(root, copies=Path(sys.argv[1])):
    assert small_book.small(copies / f"{time.monotonic_ns()}").root.exists()

def notebook(two):
    two[0]["x"] = 7
    assert two[0]["x"] == 7 and two.answer(within=60.0) and two._folder.exists()

def kept(processes):
    assert ranks.ranks()(attrgetter("number"), n=2) == [0, 1] and ranks.ranks().processes == processes

def adds(carrier):
    run(ring(carrier.names), torch.ones(100), carrier)

def pushes(store):
    if "w" not in store.keys:
        store.init("w", torch.zeros(100_000))
    store.pushpull("w", torch.ones(100_000), out=(out := torch.empty(100_000)))
    assert len(out.unique()) == 1

def in_a_file():
    memfd = os.__dict__.pop("memfd_create", None)
    try:
        return segments.Segment(1000)
    finally:
        if memfd:
            os.memfd_create = memfd

def opens(segment):
    assert segment.open and os.path.exists(segment.path)

with ExitStack() as last:
    place = "127.0.0.1", str(ranks.store().port), "0", "1", "True"
    names = "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"
    os.environ |= dict(zip(names, place))
    things = {
        "the small book": (small_book._built(), small),
        "the ranks of a notebook": (last.enter_context(d2lps.ranks(1)), notebook),
        "the processes of the tests": (ranks.ranks().processes, kept),
        "Processes": (last.enter_context(Processes()), adds),
        "SharedMemory": (last.enter_context(SharedMemory()), adds),
        "a segment in a file": (in_a_file(), opens),
        "servers in processes": (last.enter_context(kvstore.create("dist_sync", servers=1)), pushes),
    }
    for options in {"transport": "unix"}, {"transport": "tcp"}, {"servers": 2, "replicas": 1}:
        stores = last.enter_context(kvstore.cluster("dist_sync", 1, **options))
        things[f"a cluster with {options}"] = stores[0], pushes
    with suppress(cluster.NoEmulation):
        hosts = last.enter_context(cluster.emulated(hosts=1, bandwidth="100 Mbit/s"))
        things["an emulated host"] = hosts, lambda hosts: hosts.run(os.getpid)
    for thing, use in things.values():
        use(thing)

    errors = Path(sys.argv[1], "errors")
    if not (child := os.fork()):
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY), 2)
        sys.exit(0)  # leaves the with block, calls what atexit knows, and destroys all objects
    until, found = time.monotonic() + 60, (0, 0)
    while not found[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        found = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    wrong = [f"the child: {found[1]} {errors.read_text()}"] if found[1] or errors.stat().st_size else []
    for name, (thing, use) in things.items():
        try:
            use(thing)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    print("\\n".join(wrong) or "well", flush=True)
"""


def test_a_child_that_ends_normally_takes_nothing_with_it(tmp_path):
    environment = os.environ | USUAL | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout.splitlines()[-1:] == ["well"], done.stdout + done.stderr
