"""Options and calls that are wrong are refused at once, to the caller alone, in the language of the reader."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers.scripts import forked
from helpers.stores import each

from d2lps import kvstore
from d2lps.algorithms.placement import Placement
from d2lps.kvstore import KVError, Refused, Timeout, WorkerLost
from d2lps.kvstore.errors import ServerText, packed, server_text, unpacked
from d2lps.kvstore.replication.messages import Apply, Facts, Lose, Snapshot, View
from d2lps.kvstore.server import coding
from d2lps.kvstore.worker.client import as_error
from d2lps.messages import speak

MAKE = {
    "create": lambda **options: kvstore.create("dist_sync", **{"servers": 2} | options),
    "cluster": lambda **options: kvstore.cluster(**{"servers": 2} | options),
}
NO_SECONDS = [0, -1.0, float("nan"), float("inf"), 1e18, "30", True, None, 1j]
NO_STORE = [
    *({"deadline": seconds, "says": "deadline = .*: give a number of seconds, more than 0"} for seconds in NO_SECONDS),
    *({"servers": n, "says": "servers = .*: it must be a whole number, 1 or more"} for n in (0, -1, True, "2", 1.0)),
    *({"placement": wrong, "says": "a Placement, or its numbers"} for wrong in ({"larger": 10}, ["large"])),
    *({"transport": way, "says": "transport = .*:"} for way in ("udp", 4)),
    {"lost": "wait", "says": "lost = 'wait': it is one of fail, drop"},
    {"replicas": 2, "says": "replicas=2"},
    {"servers": 1, "replicas": 1, "says": "servers=2"},
    {"placement": {"large": 0}, "says": "large = 0: it must be a whole number, 1 or more"},
    {"placement": Placement(3), "says": r"placement uses servers \(0, 1, 2\), but the servers are 0 to 1"},
]
NO_STALENESS = [-1, 1.5, "2", None, True, float("nan"), 10**400, [1]]
NO_KIND = [
    (lambda: kvstore.create("dist_bsp"), "kind = 'dist_bsp'"),
    (lambda: kvstore.create("local", servers=2), "a store of kind 'local' has no option servers"),
    (lambda: kvstore.create(engine="redis"), "engine = 'redis'"),
    (lambda: kvstore.create("dist_sync", transport="unix"), "transport = .*: write 'tcp', or leave it out"),
    (lambda: kvstore.cluster("dist_sync", 0, 1), "workers = 0: it must be a whole number, 1 or more"),
    *(
        (lambda wrong=wrong: kvstore.create("dist_sync", joining=wrong), "joining = .*: give a number of seconds, more")
        for wrong in (0, -1.0, float("nan"), float("inf"), "30", True)
    ),
    *(
        (lambda wrong=wrong: kvstore.cluster("dist_ssp", 1, 1, staleness=wrong), "staleness = .*a whole number, 0 or")
        for wrong in NO_STALENESS
    ),
]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("wrong", NO_STORE, ids=range(len(NO_STORE)))
def test_an_option_is_refused_before_anything_is_started(make, wrong):
    options = {name: value for name, value in wrong.items() if name != "says"}
    with pytest.raises(Refused, match=wrong["says"]):
        MAKE[make](**options)


@pytest.mark.parametrize("make, sentence", NO_KIND, ids=range(len(NO_KIND)))
def test_a_store_that_there_is_not_is_refused(make, sentence):
    with pytest.raises(Refused, match=sentence):
        make()


@pytest.mark.parametrize("deadline", [np.float32(2.5), np.float64(2.5), np.int64(2), Fraction(5, 2), 2])
def test_a_number_of_seconds_may_be_of_any_type(deadline):
    with kvstore.cluster(workers=1, deadline=deadline) as stores:
        assert type(stores[0].deadline) is float and stores[0].deadline == float(deadline)


@pytest.mark.parametrize("placement", [{"large": 10, "virtual": 8}, Placement(2, large=10, virtual=8)])
def test_a_placement_is_given_as_it_is_or_by_its_numbers(placement):
    with kvstore.cluster(servers=2, placement=placement) as stores:
        assert (stores.placement.servers, stores.placement.large, stores.placement.virtual) == ((0, 1), 10, 8)


TRANSPORT = """
import os, torch
from d2lps import kvstore

with kvstore.create("dist_sync", servers=2, joining=60.0, transport='tcp') as store:
    store.init("w", torch.zeros(400_000))
    store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=(out := torch.empty(400_000)))
    store.barrier()
    print(out.unique().tolist(), {type(client.address).__name__ for client in store.clients})
"""


@pytest.mark.parametrize("transport, where", [("tcp", "tuple"), (None, "str")])
def test_a_store_of_one_host_may_go_over_tcp(tmp_path, transport, where):
    script = tmp_path / "work.py"
    script.write_text(TRANSPORT.replace("'tcp'", repr(transport)))
    assert forked(script, 2, D2LPS_SECRET="of this test alone") == [[f"[5.0] {{'{where}'}}"]] * 2


def test_over_tcp_a_secret_is_wanted(tmp_path):
    script = tmp_path / "work.py"
    lines = TRANSPORT.replace("\n", "\n    ")
    script.write_text(
        f"try:{lines}\nexcept Exception as error:\n    print(type(error).__name__, 'secret' in str(error))"
    )
    assert forked(script, 2, without=("D2LPS_SECRET",)) == [["Refused True"]] * 2


# ---------------------------------------------------------------- an error of its caller alone


def rows(row_ids, shape):
    """A pull of these rows into an ``out`` of this shape, of a key that has three."""
    return lambda s: s.row_sparse_pull("w", out=torch.ones(shape), row_ids=torch.tensor(row_ids, dtype=torch.int64))


CALLS = [
    (lambda s: s.push("v", torch.ones(3)), "key 'v' is not initialized: init it first"),
    (lambda s: s.pull("v", out=torch.ones(3)), "key 'v' is not initialized"),
    (
        lambda s: s.push("w", torch.ones(4)),
        "key 'w': the pushed value has shape (4,) and dtype torch.float32, but needs shape (3,)",
    ),
    (lambda s: s.push("w", torch.ones(3).double()), "dtype torch.float64"),
    (lambda s: s.push("w", torch.ones(3, 3).to_sparse_csr()), "is sparse or has no values"),
    (lambda s: s.init("v", torch.ones(3).to_sparse()), "is sparse or has no values"),
    (lambda s: s.pushpull("w", torch.ones(3).to_sparse()), "out of key 'w' is sparse or has no values"),
    (lambda s: s.push("w", torch.sparse_coo_tensor(size=(1 << 40, 3))), "has shape (1099511627776, 3)"),
    (lambda s: s.push("w", torch.ones(3).double().to_sparse()), "dtype torch.float64"),
    (lambda s: s.push("w", torch.sparse_coo_tensor([[9]], [1.0], (3,), check_invariants=False)), "found index 9"),
    (lambda s: s.push("w", "gradient"), "the pushed value is a str: give a tensor"),
    (lambda s: s.push("w", []), "no value was given"),
    (lambda s: s.push(["w", "w"], [torch.ones(3)] * 2), "a key appears twice"),
    (lambda s: s.push(["w"], [torch.ones(3)] * 2), "1 keys need a list with one value for each"),
    (lambda s: s.push(True, torch.ones(3)), "a key must be a short string or a whole number"),
    (lambda s: s.push("w", torch.ones(3, dtype=torch.complex64)), "a store holds float32"),
    (lambda s: s.pull("w"), "pull needs out="),
    (lambda s: s.pull("w", out=torch.ones(2)), "out has shape (2,)"),
    (lambda s: s.init("w", torch.ones(3)), "key 'w' is initialized already"),
    (rows([3], (1,)), "has rows 0 to 2; row_ids has 3"),
    *((rows(some, shape), "key 'w'") for some, shape in (([0, 1], (3,)), ([0, 1, 2], (2,)), ([], (1,)), ([0], (1, 2)))),
    (lambda s: s.row_sparse_pull("w"), "row_sparse_pull needs out and row_ids"),
    (lambda s: s.set_optimizer("lion", lr=1), "there is no optimizer 'lion'"),
    (lambda s: s.set_optimizer(print), "an optimizer must be given as a name and numbers"),
]


@pytest.mark.fault("F10", "keys, shapes, dtypes and kinds that are wrong")
@pytest.mark.fault("F10", "optimizers whose numbers are none")
@pytest.mark.fault("F10", "rows that do not fit")
@pytest.mark.parametrize("call, sentence, replicas", [(*call, number % 2) for number, call in enumerate(CALLS)])
def test_an_impossible_call_is_an_error_of_its_caller_alone(call, sentence, replicas):
    def work(store):
        store.init("w", torch.zeros(3))
        said = None
        if store.rank == 1:
            with pytest.raises(Refused) as caught:
                call(store)
            said = str(caught.value)
        store.pushpull("w", torch.full((3,), 4.0**store.rank), out=(out := torch.empty(3)))
        return said, out.tolist()

    with kvstore.cluster("dist_sync", 2, 2, replicas=replicas) as stores:
        (_, first), (said, second) = each(stores, work)
    assert sentence in said and first == second == [5.0] * 3
    with kvstore.create("local") as store, pytest.raises(Refused) as caught:
        store.init("w", torch.zeros(3))
        call(store)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("theirs", [torch.zeros(3, 2), torch.zeros(6)])
def test_a_key_of_another_shape_is_refused_also_if_it_has_as_many_elements(theirs):
    with kvstore.cluster(workers=2) as workers:
        ours = torch.zeros(2, 3)
        first, second = each(workers, lambda worker: worker.init("w", theirs if worker.rank else ours))
        assert first is None
        assert isinstance(second, Refused) and "'w'" in str(second) and "another shape" in str(second)
        workers[1].init("w", ours)  # which is right


def test_two_inits_that_differ_are_refused():
    def work(store):
        try:
            store.init("w", torch.zeros(3 + store.rank))
        except Refused as error:
            return str(error)
        except Timeout:
            return "the others wait in vain"

    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        found = each(stores, work)
    assert any("all initialise the same" in said for said in found)


# ---------------------------------------------------------------- in the language of the reader


@pytest.mark.parametrize("replicas", [0, 1])
def test_worker_that_has_left_is_named_in_the_language_of_the_reader(replicas):
    with kvstore.cluster("dist_sync", 2, 2, deadline=1, replicas=replicas) as (one, other):
        each((one, other), lambda store: store.init("w", torch.zeros(3)))
        other.close()
        for language, words in (("en", "worker 1 has left"), ("vi", "máy thợ"), ("zh", "工作节点")):
            speak(language)
            with pytest.raises(WorkerLost, match=words):
                one.pushpull("w", torch.ones(3))


def test_a_sentence_is_translated_at_the_other_end():
    sentence = server_text("store.server.lost", rank=2, why=server_text("store.server.ended"))
    travelled = json.loads(json.dumps(packed(sentence)))
    speak("zh")
    again = unpacked(travelled)
    assert again == "工作节点（worker）2 已失去联系（它的连接已断开）" and packed(again) == travelled
    speak("en")
    assert unpacked(packed(again)) == sentence == "worker 2 is lost (its connection has ended)"


def test_the_loss_of_a_worker_travels_to_the_backup_with_its_sentence():
    lose = Lose(1, True, (server_text("store.server.left", rank=1, why=server_text("store.server.goodbye")), "failed"))
    view = View(3, ())
    for message in (Apply(view, 4, lose), Snapshot(view, 4, (), Facts(losses=(lose,)))):
        travelled = coding.decode(json.loads(json.dumps(coding.encode(message, []))), iter(()))
        speak("vi")
        (back,) = [travelled.command] if isinstance(travelled, Apply) else travelled.facts.losses
        speak("en")
        assert back == lose and isinstance(back.why[0], ServerText) and packed(back.why[0]) == packed(lose.why[0])


@pytest.mark.parametrize(
    "sent", [None, 7, [], ["store.server.lost"], ["no.key", {}], ["store.server.lost", {}], ["a", 1, 2]]
)
def test_what_is_no_sentence_leaves_the_one_that_was_sent(sent):
    error = as_error({"kind": "Refused", "sentence": "said by the server"} | ({} if sent is None else {"told": sent}))
    assert type(error) is Refused and isinstance(error, KVError)
    assert re.fullmatch("said by the server|7", str(error))
