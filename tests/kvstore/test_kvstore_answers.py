"""Answers of a server to impossible requests, or too large for one frame: an error of that worker alone."""

import itertools
import json

import pytest
import torch
from helpers.breaking import closing, connected, tables
from helpers.frames import ends
from helpers.stores import Function, aside, each
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.kvstore import Refused
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import Broken, Channel, Entry, Op, frames, handshake
from d2lps.kvstore.wire.frames import raw

FIRST = Entry(0, 0, 0, 3, 1)  # push 1 of three elements to part 0
SECOND = FIRST._replace(part=1)


class Line(Channel):
    """Worker ``rank`` at a server, frame by frame."""

    def __init__(self, server, rank=0):
        super().__init__(connected(server.address), 5.0)
        handshake.as_worker(self, b"", {"rank": rank, "run": "", "incarnation": f"i{rank}"}, False)
        self.asked = itertools.count(1)

    def __call__(self, op, entries=(), payload=None, **metadata):
        """What is answered: the op, and its metadata."""
        number = next(self.asked)
        payload = memoryview(b"") if payload is None else raw(payload)
        self.send(op, number, entries, None if entries else metadata, payload)
        return self.heard(number)

    def heard(self, number):
        while (frame := self.receive()).op == Op.ALIVE:
            pass
        self.skip(frame)
        assert frame.number == number
        return frame.op, frame.metadata


@pytest.fixture
def lines():
    """(the server, the lines of two workers), two parts of three elements."""
    (server,) = tables()
    with closing(Line(server), Line(server, 1), server) as (one, other, _):
        for line, payload in ((one, torch.zeros(6)), (other, None)):
            assert line(Op.INIT, payload=payload, parts=[["a", 3], ["b", 3]], dtype=0)[0] == Op.OK
        yield server, one, other


def is_served(line, round_=1):
    value = torch.ones(3)
    assert line(Op.PUSH, [FIRST._replace(round=round_)], value)[0] == Op.OK
    return True


# ---------------------------------------------------------------- a handler that fails


@pytest.mark.fault("F10", "an error of the server itself in the middle of a push")
@pytest.mark.parametrize(
    "method, ask",
    [
        ("admit", lambda line: line(Op.PUSH, [FIRST], torch.ones(3))),  # before the payload is taken
        ("push", lambda line: line(Op.PUSH, [FIRST], torch.ones(3))),  # after it
        ("pull", lambda line: line(Op.PULL, [FIRST._replace(round=0)])),
        ("init", lambda line: line(Op.INIT, payload=torch.ones(3), parts=[["c", 3]], dtype=0)),
        ("come", lambda line: line(Op.BARRIER, round=1)),
        ("set_optimizer", lambda line: line(Op.OPTIMIZER, rule="sgd", numbers={"lr": 1.0})),
        ("commit", lambda line: line(Op.COMMIT, load=1, parts=0)),
    ],
)
def test_a_handler_that_fails_is_an_error_to_its_caller_and_the_next_is_served(method, ask, lines, monkeypatch, caplog):
    server, line, _ = lines

    def fails(*_, **__):
        raise MemoryError("no room")

    with monkeypatch.context() as changed:
        changed.setattr(SlotStore, method, fails)
        op, said = ask(line)
    assert op == Op.ERROR and said["kind"] == "KVError" and said["counted"] == []
    assert said["sentence"].startswith("server 0 failed at ") and said["sentence"].endswith(": MemoryError: no room")
    assert [record.exc_info[0] for record in caplog.records] == [MemoryError]  # with its traceback, on the server
    assert is_served(line) and server.store.live == {0, 1}


def test_a_failed_answer_is_an_error_of_the_pull_alone(lines, monkeypatch, caplog):
    server, one, other = lines
    entries = [FIRST, SECOND]  # of which the answer is put together
    assert one(Op.PUSHPULL, entries, torch.ones(6))[0] == Op.OK
    with monkeypatch.context() as changed:
        changed.setattr(torch, "cat", None)
        assert other(Op.PUSH, entries, torch.ones(6)) == (Op.OK, {})
        op, said = one.heard(2)
    assert (op, said["kind"], said["counted"]) == (Op.ERROR, "KVError", [0, 1])
    assert "server 0 failed at pushpull" in said["sentence"] and len(caplog.records) == 1
    assert is_served(one, 2) and server.store.live == {0, 1}


ODD = [None, True, -1, 1.5, 10**30, 2**64, "x", "x" * 600, [], [[]], [["c"]], [["c", -1]], {}, {"a": {}}, float("nan")]
ASKED = {
    Op.INIT: {"parts": [["c", 3]], "dtype": 0},
    Op.OPTIMIZER: {"rule": "sgd", "numbers": {"lr": 1.0}},
    Op.BARRIER: {"round": 1, "name": "x", "note": "x"},
    Op.STATE: {"save": 1, "keep": None, "part": 0, "from": 0},
    Op.STATUS: {"from": 0},
    Op.ROWS: {"part": 0, "width": 1, "round": 0},
    Op.READ: {"read": [[1, 1.0, 1.0]]},
    Op.RESTORE: {"load": 1, "part": 0, "tensors": [["value", 0, 3]], "numbers": {}, "rule": "sgd", "rule_numbers": {}},
    Op.COMMIT: {"load": 1, "parts": 0, "rule": "sgd", "numbers": {"lr": 1.0}, "drop": False},
    Op.OK: {},
}


def both(one, other, op, metadata):
    """Return the answers to two workers with the same request."""
    second, answers = aside(lambda: other(op, **metadata))
    mine = one(op, **metadata)
    second.join(LIVE)
    return [mine, *answers]


@pytest.mark.fault("F10", "requests that are wrong in a legal worker's frames")
@pytest.mark.parametrize("op", ASKED)
def test_a_handler_serves_or_refuses_each_frame(op, lines, caplog):
    server, line, other = lines
    for field, odd in itertools.product(ASKED[op], ODD):
        payload, said = torch.ones(3) if op in frames.LADEN else None, ASKED[op] | {field: odd}
        if op == Op.READ:  # what is right has no answer; what comes after it has
            said["read"] = [odd]
        (answer, *_) = [line(op, payload=payload, **said)] if op != Op.BARRIER else both(line, other, op, said)
        assert answer[0] in (Op.OK, Op.DATA) or answer[1]["kind"] == "Refused", (field, odd, answer)
        line(Op.COMMIT, load=0, drop=True)
    assert caplog.records == [] and server.store.live == {0, 1}


ODD_PUSHES = [FIRST._replace(**{name: odd}) for name, odd in (("dtype", 99), ("part", 9))]
ODD_PUSHES += [FIRST._replace(**{name: 2**63}) for name in ("elements", "round")]


@pytest.mark.parametrize("entries", [[], *([odd] for odd in ODD_PUSHES), [FIRST, FIRST._replace(dtype=1)]])
@pytest.mark.parametrize("op", [Op.PUSH, Op.PUSHPULL])
def test_an_odd_push_is_refused_and_the_next_one_counts(op, entries, lines, caplog):
    server, line, _ = lines
    op, said = line(op, entries, torch.ones(3 * max(1, len(entries))))
    assert (op, said["kind"], said["counted"], caplog.records) == (Op.ERROR, "Refused", [], [])
    assert is_served(line) and server.store.shards[0].rounds == [1, 0]


# ---------------------------------------------------------------- which of several pushes are counted


def test_a_push_that_is_counted_already_is_answered_although_a_worker_has_left(lines):
    server, one, other = lines
    for line in (one, other):
        assert is_served(line)
    server.store.lose(1, "it said goodbye", left=True)
    assert is_served(one)  # the first answer was lost, say
    op, said = one(Op.PUSH, [FIRST._replace(round=2)], torch.ones(3))
    assert (op, said["kind"], said["counted"]) == (Op.ERROR, "WorkerLost", [])


def test_an_error_says_which_pushes_are_counted_all_the_same(lines):
    server, one, other = lines
    assert is_served(one)
    op, said = one(Op.PUSH, [SECOND._replace(round=2), FIRST], torch.ones(6))
    assert op == Op.ERROR and "comes before push 1" in said["sentence"] and said["counted"] == [1]
    assert server.store.shards[1].rounds == [0, 0]
    assert one(Op.PUSHPULL, [FIRST, SECOND], torch.ones(6))[0] == Op.OK  # it is counted, and waits for the other
    server.store.lose(1, "killed")
    op, said = one.heard(4)
    assert (op, said["kind"], said["counted"]) == (Op.ERROR, "WorkerLost", [0, 1])


# ---------------------------------------------------------------- loads, barriers


def test_only_worker_0_loads_and_only_complete_files(lines):
    server, one, other = lines
    said = {"load": 1, "tensors": [["value", 0, 3]], "numbers": {}, "rule": None, "rule_numbers": {}}
    for line, metadata in (
        (other, said | {"part": 0}),
        (one, said | {"part": 0, "tensors": [["value", 0, 2]]}),
        (one, said | {"part": 0, "tensors": [["value", 1, 1]]}),
        (one, said | {"part": 0, "numbers": {"steps": -1}, "rule": "adam", "rule_numbers": {"lr": 1.0}}),
    ):
        op, answer = line(Op.RESTORE, payload=torch.ones(3), **metadata)
        assert (op, answer["kind"]) == (Op.ERROR, "Refused")
    for part in (0, 1):
        assert one(Op.RESTORE, payload=torch.ones(3), part=part, **said) == (Op.OK, {})
    for metadata in ({"drop": True}, {"parts": 2, "rule": None, "numbers": {}}):
        assert other(Op.COMMIT, load=1, **metadata)[0] == Op.ERROR
    assert one(Op.COMMIT, load=1, parts=2, rule=None, numbers={})[0] == Op.OK
    assert [shard.value.tolist() for shard in server.store.shards] == [[1.0] * 3] * 2


def test_the_note_of_worker_0_comes_with_the_barrier(lines):
    _, one, other = lines
    waiting, answers = aside(lambda: other(Op.BARRIER, name="load", round=1, note="not mine"))
    assert one(Op.BARRIER, name="load", round=1, note="ok")[1] == {"note": "ok"}
    waiting.join(LIVE)
    assert answers == [(Op.OK, {"note": "ok"})]
    assert one(Op.BARRIER, name="load", round=1, note="ok") == other(Op.BARRIER, name="load", round=1)


# ---------------------------------------------------------------- more than a frame holds


def test_what_is_too_long_for_a_frame_is_refused_before_it_is_sent():
    one, other = ends()
    with closing(one, other):
        with pytest.raises(Refused, match="use fewer keys, or shorter names"):
            one.send(Op.INIT, metadata={"parts": "x" * frames.TABLE})
        with pytest.raises(Refused, match="at most"):
            one.send(Op.PUSH, payload=range(frames.PAYLOAD + 1))
        one.send(Op.BARRIER, metadata={"round": 1})
        assert other.receive().metadata == {"round": 1}


def test_an_answer_that_is_too_long_is_an_error_to_who_asked(lines, monkeypatch):
    _, line, _ = lines
    monkeypatch.setattr(frames, "TABLE", 400)
    monkeypatch.setattr(SlotStore, "init", lambda *_: 10**500)
    op, said = line(Op.INIT, parts=[["c", 0]], dtype=0)
    assert op == Op.ERROR and said["kind"] == "KVError" and "server 0 has no answer" in said["sentence"]
    monkeypatch.undo()
    assert is_served(line)


def test_a_payload_is_skipped_once_and_never_from_its_middle():
    one, other = ends()
    with closing(one, other):
        one.send(Op.PUSH, payload=raw(torch.ones(3)))
        one.send(Op.BARRIER, metadata={"round": 1})
        other.skip(frame := other.receive())
        other.skip(frame)
        assert other.receive().op == Op.BARRIER
        one.send(Op.PUSH, payload=raw(torch.ones(3)))
        frame = other.receive()
        with pytest.raises(TypeError):
            other.into(frame, bytes(frame.payload))  # which cannot be written
        with pytest.raises(Broken, match="received only in part"):
            other.skip(frame)


def test_a_store_tells_more_than_a_frame_holds(monkeypatch):
    monkeypatch.setattr("d2lps.kvstore.record.PAGE", 100_000)
    monkeypatch.setattr(frames, "TABLE", 300_000)
    keys = [f"k{i}" for i in range(200)]
    with kvstore.cluster("dist_sync", 2, 1, record=True) as stores:

        def work(store):
            store.init(keys, [torch.zeros(1)] * len(keys))
            for _ in range(20):
                store.push(keys, [torch.ones(1)] * len(keys))
            store.barrier()

        each(stores, work)
        assert len([event for event in stores[1].trace("k199").events if event.op == "add"]) == 16
        assert len(json.dumps(stores[0]._calls.run(Function(stores[0]._records))[0].pushes)) > frames.TABLE
