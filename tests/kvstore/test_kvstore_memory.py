"""The memory of a server: its values and one push of each worker and key, for all behavior of workers."""

import threading
import time
from contextlib import suppress

import pytest
import torch
from helpers import breaking
from helpers.breaking import MIB, Beside, closing, store
from helpers.stores import each

from d2lps.kvstore.wire import NOTHING, PUSHES, Broken, Entry, Op, raw

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
pytestmark = pytest.mark.usefixtures("nothing_left")
ELEMENTS = MIB // 4  # of a key of 1 MiB in float32
STORED = {"sgd": 2, "adam": 3}  # the weights and what the optimizer keeps, in keys
WORKERS = 2


def most(keys: int, optimizer: str) -> int:
    """The most bytes that a server may come to have."""
    stored = keys * STORED[optimizer] * MIB
    # What Python and torch load at the first use differs between machines; a leak of a key per round has 200 MiB.
    return 3 * stored + WORKERS * keys * MIB + 96 * MIB


class Watched:
    """The most memory that the server has had beyond what it had at first, looked at every 20 ms."""

    def __init__(self, server):
        self.server, self.before, self.most, self.ended = server, server("rss"), 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self):
        while not self.ended.wait(0.02):
            self.most = max(self.most, self.server("rss") - self.before)

    def close(self):
        self.ended.set()
        self.thread.join(5)


def prepared(mine, optimizer):
    mine.init("w", torch.zeros(ELEMENTS))
    numbers = {"momentum": 0.9} if optimizer == "sgd" else {}
    mine.set_optimizer(optimizer, lr=0.1, **numbers)


@pytest.mark.fault("M", "200 rounds")
@pytest.mark.parametrize("optimizer", STORED)
def test_two_hundred_rounds_need_no_more_than_one(optimizer):
    def work(mine):
        prepared(mine, optimizer)
        out, gradient = torch.empty(ELEMENTS), torch.ones(ELEMENTS)
        for _ in range(200):
            mine.pushpull("w", gradient, out=out)

    with Beside(deadline=20.0) as server:
        stores = [store([server], rank, deadline=20.0) for rank in range(WORKERS)]
        with closing(*stores, Watched(server)) as (*_, watched):
            assert each(stores, work) == [None] * 2
        assert 0 < watched.most < most(1, optimizer), f"{watched.most / MIB:.0f} MiB"


def flood(mine, ops, many=400):
    """So many requests of one worker that never looks at an answer, as fast as they are taken; how many were."""
    line, gradient, sent = mine.clients[0], torch.ones(ELEMENTS), [0]
    part = mine._keys[next(iter(mine._keys))].parts[0][1]

    def send():
        with suppress(Broken, OSError):
            for round_ in range(1, many + 1):
                for op in ops:
                    payload = raw(gradient) if op in PUSHES else NOTHING
                    line._channel.send(op, 1000 + round_, [Entry(part, 0, 0, ELEMENTS, round_)], None, payload)
                    sent[0] += 1

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread, sent


@pytest.mark.fault("M", "a worker that pushes far ahead, and one that never takes what it asked for")
@pytest.mark.parametrize(
    "kind, ops", [("dist_sync", [Op.PUSH]), ("dist_async", [Op.PUSH, Op.PULL]), ("dist_async", [Op.PUSHPULL])]
)
def test_request_that_comes_too_early_stays_in_the_socket(kind, ops):
    with Beside(kind, WORKERS, deadline=4.0) as server:
        stores = [store([server], rank, kind=kind, deadline=4.0) for rank in range(WORKERS)]
        each(stores, prepared, "sgd")
        ahead = stores[0]
        if kind == "dist_async" and ops != [Op.PUSH]:
            ahead.clients[0]._answered = lambda channel, frame: ended.wait(10)  # the answers stay in its socket
        ended = threading.Event()
        with closing(*stores, Watched(server)) as (*_, watched):
            thread, sent = flood(ahead, ops)
            thread.join(3)
            before, _ = watched.most, time.sleep(0.5)
            assert sent[0] < 200 or kind != "dist_sync", "pushes far ahead were taken"
            ended.set()
            ahead.clients[0]._open = False
            ahead.clients[0]._channel.close()
            thread.join(5)
        assert 0 < before < most(1, "sgd"), f"{watched.most / MIB:.0f} MiB"
