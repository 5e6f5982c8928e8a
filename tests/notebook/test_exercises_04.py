"""The exercises of chapter 04: right answers, and the judges, which play programs on a network."""

import contextlib
import random
import sys
import threading
import time as clock
from collections import Counter

import cloudpickle
import pytest
from helpers.exercises import EXERCISES, module, wrong_answers
from helpers.waits import LIVE

from d2lps import check_exercise
from d2lps.notebook.grading import Failure, elsewhere
from d2lps.notebook.grading.course import texts_of

torch = pytest.importorskip("torch")

# An answer of these tests goes to another process as a learner's does: whole, without the module where it stands.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CHAPTER = "04-key-value-store"
IDS = ("push-pull", "placement", "count-workers", "sparse-pull")
SOLVED = {id: texts_of(id).solution() for id in IDS}
network = module(CHAPTER, "network")
judge_placement, judge_sparse_pull = (module(CHAPTER, f"judge_{name}") for name in ("placement", "sparse_pull"))


def cut_over_all(workers, servers, send, recv):
    """Every value is cut over all servers, and a push waits until it is counted."""
    k, n = len(servers), len(workers)

    def push(key, value):
        for server, part in zip(servers, value.chunk(k), strict=True):
            send(server, {"push": (key, part)})
        for _ in servers:
            assert recv()[1] == "counted"

    def pull(key):
        for server in servers:
            send(server, {"pull": key})
        parts = dict(recv() for _ in servers)
        return torch.cat([parts[server] for server in servers])

    def serve():
        came, sums, count, asking = {}, {}, Counter(), []
        while True:
            worker, message = recv()
            if "push" in message:
                key, part = message["push"]
                send(worker, "counted")
                count[worker, key] += 1
                came.setdefault((key, count[worker, key]), []).append(part)
                if len(came[key, count[worker, key]]) == n:
                    sums[key, count[worker, key]] = torch.stack(came.pop((key, count[worker, key]))).sum(0)
            else:
                asking.append((worker, message["pull"]))
            for one, key in list(asking):
                if (key, count[one, key]) in sums:
                    asking.remove((one, key))
                    send(one, sums[key, count[one, key]])

    return push, pull, serve


def told_unasked(workers, servers, send, recv):
    """A complete sum is sent to all workers, who ask for nothing."""
    have = {}

    def push(key, value):
        send(servers[-1 - key % len(servers)], (key, value))

    def pull(key):
        while not have.get(key):
            _, (other, total) = recv()
            have.setdefault(other, []).append(total)
        return have[key].pop(0)

    def serve():
        came = {}
        while True:
            worker, (key, value) = recv()
            came.setdefault(key, {}).setdefault(worker, []).append(value)
            if len(came[key]) == len(workers) and all(came[key].values()):
                total = sum(values.pop(0) for values in came[key].values())
                for one in workers:
                    send(one, (key, total))

    return push, pull, serve


def by_the_store(keys, servers):
    from d2lps.algorithms.placement import Placement

    place = Placement(servers)
    return {key: place.owner(key) for key in keys}


class Smallest:
    """Adds the smallest first, in double precision: an object, which remembers how far it is."""

    def __init__(self, n):
        self.n, self.version, self.open = n, 0, {}

    def __call__(self, worker, number, value):
        if number > self.version:
            self.open.setdefault(number, {}).setdefault(worker, value)
        if len(self.open.get(number, ())) < self.n:
            return None
        self.version = number
        return torch.stack(list(self.open.pop(number).values())).double().sort(0).values.sum(0).float()


def by_seeds(keys, servers):
    """Rendezvous once more: random numbers that are drawn from a text are the same everywhere."""
    return {key: max(servers, key=lambda server: random.Random(f"{key} at {server}").random()) for key in keys}


def by_tensors(rows, cuts, ask):
    if not rows:
        return torch.empty(0)
    wanted, back = torch.tensor(rows).unique(return_inverse=True)
    owners = torch.bucketize(wanted, torch.tensor(cuts), right=True) - 1
    parts = [ask(int(owner), wanted[owners == owner] - cuts[owner]) for owner in owners.unique()]
    return torch.cat(parts)[back]


RIGHT = {
    "push-pull": [cut_over_all, told_unasked],
    "placement": [by_the_store, by_seeds],
    "count-workers": [Smallest],
    "sparse-pull": [by_tensors],
}
MEASURED = {  # parts of the sentence about the solution
    "push-pull": [
        "pushes and pulls 18 values of 4.32 kB, that is 77.76 kB each way",
        "sends 78.34 kB and receives 77.76 kB, in 54 messages",
    ],
    "placement": ["A fourth one takes over 466, where 500 would be its exact part"],
    "sparse-pull": ["256 B travel in 3 messages, and the whole table has 640 B"],
}


def plain(verdict):
    return verdict.sentence.replace("\u00a0", " ")


def test_a_failure_tells_who_sent_what():
    made = texts_of("push-pull").solutions()
    verdict = check_exercise("push-pull", made["WRONG"]["push-pull"]["too-many-bytes"][0])
    assert plain(verdict).splitlines() == [
        "n = 3, k = 2: in all, worker0 receives 155.5 kB, but the sums that it wants have only 77.76 kB.",
        "worker0 → server0: 18 messages, 39.17 kB",
        "worker0 → server1: 18 messages, 39.17 kB",
        "server0 → worker0: 9 messages, 77.76 kB",
        "server1 → worker0: 9 messages, 77.76 kB",
    ]
    verdict = check_exercise("count-workers", made["messages_counted"])
    assert verdict.sentence.splitlines()[-1] == "The messages that came, as (worker, number): (0, 1) (0, 1) (1, 1)"
    verdict = check_exercise("sparse-pull", made["every_row"])
    assert plain(verdict).splitlines()[1] == "server 0: rows [0 1 2 3], 256 B"


def test_a_deadlock_is_seen_and_not_waited_for(monkeypatch):
    monkeypatch.setattr(network, "PATIENCE", 10_000.0)
    made = wrong_answers("push-pull")
    for mistake in ("push-waits", "no-answer", "overtaken"):
        verdict = check_exercise("push-pull", made[mistake][0], deadline="200 s")
        assert verdict.mistake == mistake and "worker1 in pu" in verdict.sentence


def test_nothing_stays_behind():
    wrong = wrong_answers("push-pull")
    before = set(threading.enumerate())
    for mistake in ("too-early", "no-answer", "differs"):
        check_exercise("push-pull", wrong[mistake][0])
    check_exercise("push-pull", catches_everything, deadline="100 s")
    until = clock.monotonic() + LIVE
    while (left := [each for each in threading.enumerate() if each not in before]) and clock.monotonic() < until:
        clock.sleep(0.01)
    assert left == []


def catches_everything(workers, servers, send, recv):
    def serve():
        for _ in range(5):
            try:
                while True:
                    recv()
            except BaseException:
                continue

    return lambda key, value: send(servers[0], value), lambda key: recv(), serve


def test_messages_are_copied_and_counted():
    value = torch.arange(3.0)
    copied, nbytes = network.carried(["push", 7, (value, {"é": None}), b"ab"])
    assert nbytes == 4 + 8 + 12 + 2 + 8 + 2
    value.fill_(9)
    assert torch.equal(copied[2][0], torch.arange(3.0)) and type(copied[2]) is tuple
    for thing in ({1}, object(), [lambda: None], 1j):
        with pytest.raises(network.Unsendable):
            network.carried(thing)


def test_a_run_is_the_same_every_time():
    def played(seed):
        net, told = network.Network(["a", "b", "c"], random.Random(seed).choice), []

        def talk(name):
            for i in range(5):
                for other in {"a", "b", "c"} - {name}:
                    net.send(name, other, i)
            for _ in range(10):
                told.append((name, *net.recv(name)))

        net.play({name: lambda name=name: talk(name) for name in "abc"}, until="abc")
        return told

    runs = [played(seed % 4) for seed in range(8)]
    assert runs[:4] == runs[4:] and any(run != runs[0] for run in runs[:4])
    for run in runs:  # what one sends to another arrives in the order in which it was sent
        for src in "abc":
            for dst in set("abc") - {src}:
                assert [message for at, who, message in run if (at, who) == (dst, src)] == list(range(5))


def test_an_answer_is_asked_in_another_process():
    keys, servers = ["a", "b"], ["x", "y"]
    assert elsewhere(SOLVED["placement"], keys, servers) == SOLVED["placement"](keys, servers)
    there = elsewhere(lambda keys, servers: {key: hash(key) for key in keys}, keys, servers)
    assert set(there) == set(keys) and all(there[key] != hash(key) for key in keys)
    lock = threading.Lock()
    for cannot in (lambda keys, servers: lock and {}, lambda keys, servers: 1 / 0, lambda keys, servers: object()):
        assert elsewhere(cannot, keys, servers) is None


def test_consistent_hashing_moves_one_part_in_k_plus_one():
    for case in EXERCISES["placement"].cases:
        found = judge_placement.judge(case, SOLVED["placement"])
        k = len(case.servers)
        assert judge_placement.LEAST * 2000 / (k + 1) <= int(found["moved"]) <= judge_placement.MOST * 2000 / (k + 1)


def test_an_answer_that_swallows_a_refusal_is_refused_again():
    def swallows(rows, cuts, ask):
        for server in range(9):
            try:
                ask(server, [99])
            except Exception:
                continue
        return torch.tensor(rows, dtype=torch.float32).repeat_interleave(16).view(-1, 16)

    assert check_exercise("sparse-pull", swallows).mistake == "wrong-cut"

    def quiet(workers, servers, send, recv):
        def push(key, value):
            with contextlib.suppress(Exception):
                send("nobody", value)

        return push, recv, recv

    assert check_exercise("push-pull", quiet).mistake == "differs"
    with pytest.raises(Failure):
        judge_sparse_pull.Servers(judge_sparse_pull.RowsCase((0,), (0, 1))).ask(1, [0])
