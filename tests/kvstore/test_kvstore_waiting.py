"""Who pushes to a key that is being loaded waits for the end of the load, and then the push counts."""

import threading
import time

import pytest
import torch
from helpers.stores import each

from d2lps.kvstore import ShardStore, Timeout, WorkerLost, cluster, codec
from d2lps.kvstore.errors import BeingLoaded
from d2lps.kvstore.wire import Op
from d2lps.kvstore.worker.client import Request

pytestmark = pytest.mark.fault("F1", "worker 0 killed in the midst of a load, and the others push")


def loading(**options) -> ShardStore:
    """One key, of which a value is ready."""
    held = ShardStore("dist_async", 3, **options)
    held.init(0, "a", 4, torch.float32, torch.zeros(4))
    held.stage(0, 1, 0, {"value": torch.ones(4)}, None)
    return held


def pushed(held: ShardStore) -> list:
    with held.counting(1, [0]):
        return held.shards[0].value.tolist()


ENDS = {
    "taken": (lambda held: held.commit(0, 1, 1, None), {}, [1.0] * 4),
    "dropped": (lambda held: held.drop(), {}, [0.0] * 4),
    "all fail": (lambda held: held.lose(0, "killed"), {"lost": "fail"}, WorkerLost),
    "it is lost": (lambda held: held.lose(1, "killed"), {"lost": "drop"}, WorkerLost),
    "worker 0 is lost": (lambda held: held.lose(0, "killed"), {"lost": "drop"}, BeingLoaded),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_push_counts_after_the_end_of_a_load(end):
    act, options, comes = ENDS[end]
    held = loading(**options)
    said = r"a push to key a waits for the end of a load: 30 s are over; where it raised an error, load again"
    with pytest.raises(BeingLoaded, match=said):
        pushed(held)
    act(held)
    if isinstance(comes, list):
        assert pushed(held) == comes
    else:
        with pytest.raises(comes):
            pushed(held)


@pytest.mark.slow
@pytest.mark.parametrize("says", [True, False])
def test_what_nobody_has_heard_of_is_dropped_when_somebody_says_so_or_in_the_end(says):
    held = loading(lost="drop", deadline=30.0 if says else 0.3)
    held.lose(0, "killed")
    with pytest.raises(BeingLoaded):
        pushed(held)
    held.given_up = says
    says or time.sleep(0.7)
    assert pushed(held) == [0.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("end", ["taken", "dropped", "worker 0 is lost", "deadline"])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_push_of_another_worker_counts_when_the_load_is_over(replicas, end):
    with cluster("dist_async", 2, 2, lost="drop", deadline=1.5, replicas=replicas) as (loads, pushes):

        def begin(store):
            store.init("w", torch.zeros(3))
            store.set_optimizer("sgd", lr=-1.0)

        each((loads, pushes), begin)
        ((part, number),) = loads._keys["w"].parts
        client, optimizer = loads.clients[part.server], {"rule": "sgd", "rule_numbers": {"lr": -1.0}}
        metadata, payload = codec.encode({"value": torch.full((3,), 10.0)})
        client.wait(
            client.ask(
                Request(Op.RESTORE, metadata=metadata | optimizer | {"load": 1, "part": number}, payload=payload)
            ),
            time.monotonic() + 5,
        )
        heard = []

        def push():
            try:
                heard.append(pushes.push("w", torch.ones(3)))
            except Timeout as error:
                heard.append(error)

        thread = threading.Thread(target=push, daemon=True)
        thread.start()
        time.sleep(0.2)
        assert not heard
        if end == "worker 0 is lost":
            for each_one in loads.clients:
                each_one._open = False
                each_one._channel.close()
            there = pushes.clients[part.server]
            there.wait(there.ask(Request(Op.COMMIT, metadata={"drop": True})), time.monotonic() + 5)
        elif end != "deadline":
            how = {"drop": True} if end == "dropped" else {"parts": 1, "rule": "sgd", "numbers": {"lr": -1.0}}
            client.wait(client.ask(Request(Op.COMMIT, metadata={"load": 1} | how)), time.monotonic() + 5)
        thread.join(10)
        if end == "deadline":
            assert "waits for the end of a load" in str(heard[0]) and heard[0].counted == heard[0].unknown == ()
        else:
            pushes.pull("w", out=(out := torch.empty(3)))
            assert heard == [None] and out.tolist() == [11.0 if end == "taken" else 1.0] * 3
