"""The exercises of chapter 11: right answers unlike the solutions, and what the judges know."""

import math
import time as clock
from collections import Counter, OrderedDict
from contextlib import suppress

import pytest
import torch
from helpers.exercises import module

from d2lps import check_exercise
from d2lps.notebook.grading import edited
from d2lps.notebook.grading.course import texts_of

CHAPTER = "11-sparse-servers"
IDS = ("sparse-push", "balance", "cache-hit")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_push, judge_balance, judge_cache = (module(CHAPTER, f"judge_{name}") for name in ("push", "balance", "cache"))


# ---- right answers that are unlike the solutions


def by_torch(number, rows, gradients, cuts, send):
    """Adds up by index_add, and sends tensors."""
    unique, places = torch.tensor(rows, dtype=torch.int64).unique(return_inverse=True)
    sums = torch.zeros(len(unique)).index_add_(0, places, torch.tensor(gradients))
    for server in range(len(cuts) - 1):
        own = (unique >= cuts[server]) & (unique < cuts[server + 1])
        while own.any():
            try:
                send(torch.tensor(server), number, unique[own] - cuts[server], sums[own])
                break
            except TimeoutError:
                continue


def in_quarters(popularity, servers):
    """At most a quarter of the mean load in each copy, on the servers with the smallest load."""
    load, places = Counter(dict.fromkeys(servers, 0.0)), {}
    for row in sorted(range(len(popularity)), key=popularity.__getitem__, reverse=True):
        count = min(len(servers), math.ceil(4 * len(servers) * popularity[row]))
        places[row] = tuple(sorted(servers, key=load.__getitem__)[:count])
        for server in places[row]:
            load[server] += popularity[row] / len(places[row])
    return tuple(places[row] for row in range(len(popularity)))


def by_ordered_dict(ids, size):
    kept, hits = OrderedDict(), 0
    for row in ids:
        hits += row in kept
        kept[row] = None
        kept.move_to_end(row)
        while len(kept) > size:
            kept.popitem(last=False)
    return hits


def with_waiting(number, rows, gradients, cuts, send):
    """Waits for 10 ms after a loss, then twice as long each time, and at most for a second."""

    def patient(*message):
        pause = 0.01
        while True:
            try:
                return send(*message)
            except TimeoutError:
                clock.sleep(pause / 100)  # a test does not wait as long
                pause = min(1, 2 * pause)
                waited.append(pause)

    waited = []
    SOLVED["sparse-push"](number, rows, gradients, cuts, patient)
    assert sum(waited) < 10


RIGHT = {"sparse-push": [by_torch, with_waiting], "balance": [in_quarters], "cache-hit": [by_ordered_dict]}
MEASURED = {"sparse-push": ["of 4 gradients", "3 rows"], "balance": ["times the mean load"], "cache-hit": ["47.0%"]}


# ---- what the judges know


@pytest.mark.parametrize("case", judge_cache.CASES, ids=lambda case: case.label)
def test_the_judge_counts_hits_as_a_cache_does(case):
    assert judge_cache.hits(case.ids, case.size) == by_ordered_dict(case.ids, case.size)


@pytest.mark.parametrize("case", judge_balance.CASES, ids=lambda case: case.label)
def test_the_room_is_enough_and_one_copy_is_not(case):
    places = SOLVED["balance"](case.chances, list(case.servers))
    assert judge_balance.hottest(case, places) <= 1.1 and sum(map(len, places)) <= case.copies
    if case.s and len(case.servers) > 1:
        single = [own[:1] for own in places]
        assert judge_balance.hottest(case, single) > 1.1 or max(case.chances) * len(case.servers) <= 1.1


def test_a_server_counts_a_number_once_whatever_gets_lost():
    case = judge_push.PushCase("k = 1", (0,), (1.0,), (0, 1), 5, ((0, "answer"), (0, "message")))
    servers = judge_push.Servers(case)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            servers.send(0, 5, [0], [1.0])
    servers.send(0, 5, [0], [1.0])
    assert servers.table[0] == 1.0


def test_row_0_is_a_row():
    falsy = edited(SOLVED["cache-hit"], ("if row in kept", "if kept.get(row)"), ("= True", "= row"))
    assert not check_exercise("cache-hit", falsy).passed


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_a_refusal_that_is_caught_keeps_its_name(caught):
    """The row is that of the table, and the loop tries for ever."""

    def tries_for_ever(number, rows, gradients, cuts, send):
        def stubborn(server, number, rows, sums):
            while True:
                with suppress(caught):
                    return send(server, number, [row + cuts[server] for row in rows], sums)

        SOLVED["sparse-push"](number, rows, gradients, cuts, stubborn)

    assert check_exercise("sparse-push", tries_for_ever, "100 s").mistake == "wrong-offset"
