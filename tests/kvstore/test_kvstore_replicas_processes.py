"""Servers in processes of their own are killed, stopped and replaced while workers train."""

import textwrap

import pytest
import torch
from helpers import breaking
from helpers.scripts import forked

from d2lps import kvstore
from d2lps.kvstore import checkpoint

nothing_left = breaking.nothing_left
pytestmark = pytest.mark.usefixtures("nothing_left")

SCRIPT = """
import os, signal, time
import torch
from d2lps import kvstore

SIZE, ROUNDS = 30_000, 30

def whole():
    until = time.monotonic() + 60
    while any(len(view.members) < 2 for view in store.views):
        assert time.monotonic() < until, store.views
        time.sleep(0.05)

def pid(number):
    (keeper,) = [each for each in store.started if getattr(each, "number", None) == number]
    return keeper.process.process.pid

options = {{"servers": 2, "deadline": 8.0, "joining": 60.0, "placement": {{"large": 20_000}}}} | {options}
with kvstore.create({kind!r}, **options) as store:
    store.init("w", torch.ones(SIZE, dtype=torch.float64))
    if {kind!r} == "dist_sync":
        store.set_optimizer("adam", lr=0.01)
    else:
        store.set_optimizer("sgd", lr=-1.0)
    out, counted = torch.empty(SIZE, dtype=torch.float64), 0
    try:
        for round_ in range(ROUNDS):
            if {kind!r} == "dist_sync":
                drawn = torch.Generator().manual_seed(2 * round_ + store.rank)
                pushed = torch.randn(SIZE, generator=drawn, dtype=torch.float64)
            else:
                pushed = torch.full((SIZE,), 1000.0**store.rank, dtype=torch.float64)
            store.push("w", pushed)
            {trouble}
            store.pull("w", out=out)
        store.barrier()
        store.pull("w", out=out)
        print(out.sum().item(), out[0].item(), out[-1].item())
    except kvstore.KVError as error:
        print(type(error).__name__, getattr(error, "servers", ()), getattr(error, "keys", ()))
"""


def said(folder, kind="dist_sync", trouble="", options=None, **environment):
    script = folder / "work.py"
    script.write_text(textwrap.dedent(SCRIPT).format(kind=kind, trouble=trouble, options=options or {"replicas": 1}))
    return forked(script, 2, **environment)


def ran(*arguments, **named):
    """Return the lines that both workers print."""
    one, other = said(*arguments, **named)
    assert one == other
    return one


KILLED_TWICE = """
            if round_ == 5:
                said = {save}
                if store.rank == 0:
                    store.kill_server(0)
            if round_ == 15 and said:
                said.wait()
            if round_ == 20:
                whole()
                if store.rank == 1:
                    store.kill_server(1)
"""
STOPPED = """
            if round_ == 5 and store.rank == 0:
                os.kill(stopped := pid(0), signal.SIGSTOP)
            if round_ == 15 and store.rank == 0:
                os.kill(stopped, signal.SIGCONT)
"""
BOTH = """
            if round_ == 5:
                store.barrier()
                store.kill_server(store.rank)
"""


@pytest.fixture(scope="module")
def wanted():
    """Return what the workers print of the same training in one process, without servers and without trouble."""
    with kvstore.create("local") as store:
        store.init("w", torch.ones(30_000, dtype=torch.float64))
        store.set_optimizer("adam", lr=0.01)
        for round_ in range(30):
            draws = [torch.Generator().manual_seed(2 * round_ + rank) for rank in range(2)]
            store.push("w", [torch.randn(30_000, generator=drawn, dtype=torch.float64) for drawn in draws])
        store.pull("w", out=(out := torch.empty(30_000, dtype=torch.float64)))
    return [f"{out.sum().item()} {out[0].item()} {out[-1].item()}"]


@pytest.mark.slow(12)
@pytest.mark.fault("F2", "server process killed while its store is saved in the background, then the other one")
def test_saves_stay_complete_while_servers_are_killed_in_turn(tmp_path, wanted):
    path = tmp_path / "saved"
    trouble = KILLED_TWICE.strip().format(save=f"store.save({str(path)!r}, background=True)")
    assert ran(tmp_path, trouble=trouble) == wanted
    (_, state) = checkpoint.read(path).keys["w"]
    assert state["steps"] == 6 and state["value"].numel() == 30_000


@pytest.mark.slow(8)
@pytest.mark.fault("F4", "server process stopped, and revived when another has taken over")
def test_a_server_that_is_stopped_is_put_out_and_counts_no_more(tmp_path, wanted):
    assert ran(tmp_path, trouble=STOPPED.strip()) == wanted


@pytest.mark.slow(8)
@pytest.mark.fault("F2", "server process killed, over TCP, asynchronously")
def test_no_push_is_lost_or_counted_twice_over_tcp(tmp_path):
    trouble, options = KILLED_TWICE.strip().format(save=None), {"replicas": 1, "transport": "tcp"}
    found = ran(tmp_path, "dist_async", trouble, options, D2LPS_SECRET="0123456789abcdef" * 4)
    first = 1.0 + 30 * 1001
    assert found == [f"{30_000 * first} {first} {first}"]


@pytest.mark.slow(8)
@pytest.mark.fault("F3", "both servers of a pair killed at once")
def test_both_are_killed_and_the_keys_are_named(tmp_path):
    for (found,) in said(tmp_path, trouble=BOTH.strip(), options={"replicas": 1, "deadline": 3.0}):
        assert found in ("DataLost (0,) ('w',)", "DataLost (1,) ('w',)"), "both slots are lost: it names one"
