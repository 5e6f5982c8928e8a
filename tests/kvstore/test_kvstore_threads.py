"""Threads share a store, forked children do not, and what a thread is at ends with it or with the interpreter."""

import atexit
import ctypes
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress

import pytest
import torch
import torch.distributed as dist
from helpers.breaking import gone, running
from helpers.stores import aside, full, pulled, soon
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused


def test_threads_push_to_one_key_one_after_the_other_and_to_several_side_by_side():
    with kvstore.cluster("dist_async", 1, 2) as (store,):
        keys = ["a", "b"]
        store.init(keys, [torch.zeros(4), torch.zeros(40_000)])
        store.set_optimizer("sgd", lr=-1.0)
        found = []

        def push(key, size):
            for _ in range(100):
                store.push(key, torch.ones(size))
                found.append(pulled(store, key, size)[0])

        pairs = [("a", 4), ("a", 4), ("b", 40_000), ("b", 40_000)]
        threads = [threading.Thread(target=push, args=pair) for pair in pairs]
        [thread.start() for thread in threads], [thread.join(LIVE) for thread in threads]
        assert len(found) == 400 and [pulled(store, "a", 4), pulled(store, "b", 40_000)] == [[200.0], [200.0]]


def test_two_threads_of_each_worker_come_to_two_barriers():
    with kvstore.cluster("dist_sync", 2, 1, deadline=5.0) as stores:
        threads = [threading.Thread(target=store.barrier, daemon=True) for store in [*stores, *stores]]
        [thread.start() for thread in threads], [thread.join(LIVE) for thread in threads]
        assert not any(thread.is_alive() for thread in threads)


def test_a_store_works_without_a_thread_of_its_own(monkeypatch):
    def fail(*_):
        raise RuntimeError("can't start new thread")

    store = kvstore.create("local")
    with monkeypatch.context() as patch:
        patch.setattr("threading._start_new_thread", fail)
        store.init("w", torch.ones(3))
        assert pulled(store, "w") == [1.0]
    assert pulled(store, "w") == [1.0]


def test_a_cluster_may_be_closed_by_two_threads_at_once():
    workers, heard = kvstore.cluster(workers=2, servers=2), []

    def close():
        try:
            workers.close()
        except Exception as error:
            heard.append(error)

    closers = [threading.Thread(target=close) for _ in range(4)]
    for one in closers:
        one.start()
    for one in closers:
        one.join(LIVE)
    assert heard == [] and not any(one.is_alive() for one in closers)


AT_WORK = """
import atexit, threading
atexit.register(lambda: print([one.name for one in threads._started if one.is_alive()]))  # the last thing that is done
import torch
from d2lps import kvstore
from d2lps.kvstore import threads
cluster, begun = kvstore.cluster(workers=2, servers=2), threading.Barrier(3)
def work(store):
    store.init("w", torch.zeros(300_000))
    begun.wait(60)
    try:
        while True:
            store.pushpull("w", torch.ones(300_000), out=torch.empty(300_000))
    except kvstore.KVError:
        pass
for store in cluster:
    threading.Thread(target=work, args=(store,), daemon=True).start()
begun.wait(60)
"""


def test_at_the_end_of_an_interpreter_the_threads_of_a_cluster_end_first():
    """Python ends them where they are: in the midst of torch, which aborts the process, once in four times."""
    ended = subprocess.run([sys.executable, "-c", AT_WORK], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr


def test_a_push_to_a_store_that_another_thread_closes_says_so():
    with kvstore.cluster("dist_async", 1, 1) as (store,):
        store.init("w", full(0, 40_000))
        store.set_optimizer("sgd", lr=-1.0)
        store.push("w", full(1, 40_000))  # now it has a place in shared memory
        store._shared_buffer.close()
        with pytest.raises(Refused, match="closed"):
            store.push("w", full(1, 40_000))


@pytest.mark.parametrize("struck", [SystemExit, KeyboardInterrupt])
def test_an_exception_in_the_thread_of_a_call_is_its_error(struck, monkeypatch):
    def strike(*_):
        raise struck

    store = kvstore.create("local")
    store.init("w", full(0))
    with monkeypatch.context() as patch, pytest.raises(KVError, match=struck.__name__):
        patch.setattr(type(store), "_added", strike)
        store.push("w", full(1))
    assert pulled(store) == [0.0]


def test_an_exception_in_a_waiting_thread_loses_no_call():
    with kvstore.create("local") as only:
        only.init("w", torch.zeros(3))
        for _ in range(3):
            for thread in threading.enumerate():
                if thread.name == "d2lps store":
                    struck = ctypes.py_object(RuntimeError)
                    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), struck) == 1
            only.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
            assert out.tolist() == [1.0] * 3


def ended(child: int) -> int | None:
    """Return the exit status of a child, or None if it hangs."""
    found = []
    with suppress(AssertionError):
        soon(lambda: found.append(os.waitpid(child, os.WNOHANG)) or found[-1][0])
        return os.waitstatus_to_exitcode(found[-1][1])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def lets_go(store):
    store.close()
    del store
    gc.collect()


def is_refused(store):
    for call in (store.barrier, lambda: store.push("w", full(1)), lambda: pulled(store)):
        with pytest.raises(Refused, match="forked"):
            call()


IN_A_CHILD = {"leaves": lambda store: atexit._run_exitfuncs(), "uses": is_refused, "lets go": lets_go}


@pytest.mark.fault("F15", "a worker with a store that forks")
@pytest.mark.parametrize("kind, how", [("local", "uses"), *itertools.product(("dist_async", "processes"), IN_A_CHILD)])
def test_a_forked_child_is_refused_and_disturbs_no_store_of_its_parent(kind, how, monkeypatch):
    """Whatever another thread is at as the child is forked."""
    with ExitStack() as last:
        if kind == "processes":
            meeting = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            usual = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{meeting.port}"}
            for name, value in (usual | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
                monkeypatch.setenv(name, value)
            store = last.enter_context(kvstore.create("dist_async", servers=1, joining=60.0, deadline=10.0))
        elif kind == "local":
            store = last.enter_context(kvstore.create("local"))
        else:
            store = last.enter_context(kvstore.cluster(kind, 1, 1))[0]
        store.init(["w", "v"], [full(0), full(0, 50_000)])
        store.set_optimizer("sgd", lr=-1.0)
        stop = threading.Event()

        def push():
            while not stop.is_set():
                store.push("v", full(1, 50_000))
            return "done"

        thread, found = aside(push)
        for _ in range(3):
            if not (child := os.fork()):
                with suppress(BaseException):
                    IN_A_CHILD[how](store)
                    os._exit(0)
                os._exit(1)
            assert ended(child) == 0, "a call hangs in a forked child, or is not refused there"
        stop.set()
        thread.join(LIVE)
        store.push("w", full(1))
        assert found == ["done"] and pulled(store) == [1.0]
        servers = [each.process.pid for each in store.started] if kind == "processes" else []
        assert all(map(running, servers))
    assert gone(servers), "a server is left behind"
