"""``engine="mxnet"`` runs our programs on MXNet's ps-lite, and MXNet's scripts run on our store.

Each store on MXNet starts several processes that import MXNet for two seconds each, so few stores are made here: one
test looks at what a program computes and then at how its store ends.
"""

import ast
import os
import signal
import sys
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from helpers.ranks import Ranks, outcome, ranks, settled, tell
from helpers.scripts import forked

from d2lps import kvstore
from d2lps.kvstore import Refused, Timeout
from d2lps.kvstore.pslite.store import DTYPES

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="MXNet 1.9.1 is for Linux on x86-64"
)
LARGE = 1_200_000  # more than MXNet's bound, above which it cuts a key in parts


@contextmanager
def created(rank, kind="dist_sync", engine="mxnet", **options):
    """Make the store of this rank, and see to it that nothing that was started for it is there afterwards."""
    os.environ.update(rank.environment)
    with kvstore.create(kind, engine=engine, **options) as found:
        pids = [pid for _, _, pid in found._nodes.pids()] if engine == "mxnet" else []
        yield found
    assert gone(pids), "a process is left behind"


def gone(pids, seconds=10.0) -> bool:
    return settled(lambda: any(map(psutil.pid_exists, pids)), False, seconds) is False


# ---------------------------------------------------------------- the same program


def sums(mine):
    """Return the sums of pushes of 4^rank that a worker pulls: digits in base 4 say how often each rank counts."""
    seen, four = [], 4.0**mine.rank
    mine.init("w", torch.full((2, 3), 7.0 + mine.rank))
    mine.init([3, "3", "half"], [np.zeros(5), torch.zeros(LARGE, dtype=torch.float64), torch.zeros(4).half()])
    mine.pull("w", out=(out := torch.empty(2, 3)))
    seen.append(out.tolist())
    gradient, wide, many = torch.full((2, 3), four), np.full(5, four), torch.full((LARGE,), four).double()
    for turn in range(4):
        mine.push("w", gradient)  # the same array again, which must stay as it is
        mine.pull("w", out=out)
        assert gradient.unique().tolist() == [four]
        seen.append(out.unique().tolist())
        outs = [np.empty(5), torch.empty(LARGE).double()]
        mine.pushpull([3, "3"], [[wide * (turn + 1), wide], many], out=outs)
        seen += [outs[0].tolist(), outs[1].unique().tolist()]
        mine.push("half", gradient.reshape(-1)[:4].half(), priority=-turn)
    mine.push("w", out)  # what was pulled, as what is pushed
    mine.pull("w", out=[out, other := np.empty((2, 3), np.float32)])
    mine.pull("half", out=(half := torch.empty(4).half()))
    mine.barrier()
    return seen + [out.unique().tolist(), other.tolist(), half.tolist(), mine.rank, mine.num_workers, mine.type]


def killed(mine, key, value, name, number):
    """Kill a process of the store, and return the error of the next call, which ends the store."""
    mine.barrier()
    for other, which, pid in mine._nodes.pids():
        if (other, which) == (name, number):
            os.kill(pid, signal.SIGKILL)
    error, again = outcome(lambda: mine.pushpull(key, value)), outcome(mine.barrier)
    assert type(again) is type(error) and vars(again) == vars(error) and "store has ended" in str(again)
    return type(error).__name__, getattr(error, "servers", ()) or getattr(error, "ranks", ()), str(error)


def on_both(rank, program, servers, *victim):
    """Return what the program computes on MXNet and on our servers, and MXNet's error after a process is killed."""
    with created(rank, servers=servers, deadline=20.0) as mine:
        theirs, error = program(mine), killed(mine, *victim)
    with created(rank, engine="d2lps", servers=servers) as mine:
        return theirs, program(mine), error


def test_sums_are_those_of_our_servers_and_a_server_that_is_killed_is_named():
    for theirs, ours, error in ranks()(on_both, sums, 2, "3", torch.ones(LARGE).double(), "server", 1, n=2):
        assert theirs == ours
        assert error[:2] == ("ServerLost", (1,)) and "server 1" in error[2]
    assert theirs[0] == [[7.0] * 3] * 2 and theirs[1:4] == [[5.0], [10.0] * 5, [5]]


TWICE = """
import torch
from d2lps import kvstore

for _ in range(2):  # a second store in the same process, after the first and without a close
    mine = kvstore.create("dist_sync", engine="mxnet", servers=1)
    mine.init("w", torch.zeros(3))
    for _ in range(3):
        mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=(out := torch.empty(3)))
    print(mine.rank, mine.num_workers, out.tolist(), "pids", [pid for _, _, pid in mine._nodes.pids()], flush=True)
"""


def test_a_store_that_is_never_closed_leaves_nothing(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(TWICE)
    lines = [[line.split(" pids ") for line in lines] for lines in forked(script, 2)]
    assert [[values for values, _ in each] for each in lines] == [
        [f"{rank} 2 [5.0, 5.0, 5.0]"] * 2 for rank in range(2)
    ]
    pids = [pid for each in lines for _, some in each for pid in ast.literal_eval(some)]
    assert len(pids) == 2 * 4 and gone(pids)


RULES = [
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "rescale_grad": "mean"}),
    ("adagrad", {"lr": 0.1, "rescale_grad": 0.5}),
    ("adagrad", {"lr": 0.1, "eps": 1e-9}),
    ("adam", {"lr": 0.01}),
    ("adam", {"lr": 0.01, "beta1": 0.8, "beta2": 0.99, "weight_decay": 0.1}),
]


def steps(mine):
    """Weights after some steps by each rule."""
    draw, found = torch.Generator().manual_seed(mine.rank), []
    for key, (rule, numbers) in enumerate(RULES):
        mine.init(key, torch.linspace(-1, 1, 50))
        mine.set_optimizer(rule, **numbers)  # which forgets what it remembered by the one before
        for _ in range(5):
            mine.push(key, torch.randn(50, generator=draw))
            mine.pull(key, out=(out := torch.empty(50)))
        found.append(out)
    return found


def test_optimizers_take_the_same_steps_and_a_worker_that_is_killed_is_named():
    for theirs, ours, error in ranks()(on_both, steps, 1, 0, torch.ones(50), "worker", 1, n=2):
        for rule, one, other in zip(RULES, theirs, ours, strict=True):
            assert torch.allclose(one, other, rtol=2e-5, atol=2e-6), (rule, one - other)
        assert error[:2] == ("WorkerLost", (1,)) and "worker 1" in error[2]


def asynchronous(rank):
    """Count pushes, and leave with an error, which ends the store."""
    with pytest.raises(ZeroDivisionError), created(rank, "dist_async", servers=2) as mine:
        mine.init("w", torch.zeros(3))
        with pytest.raises(Refused, match="without an optimizer ends at the first push"):
            mine.push("w", torch.ones(3))
        mine.set_optimizer("sgd", lr=-1.0)
        for _ in range(3):
            mine.push("w", torch.full((3,), 16.0**mine.rank))
        mine.pull("w", out=(out := torch.empty(3)))
        own = int(out[0]) // 16**mine.rank % 16
        mine.barrier()
        mine.pull("w", out=out)
        pids = [pid for _, _, pid in mine._nodes.pids()]
        raise ZeroDivisionError
    assert gone(pids)
    return own, out.tolist()


def test_dist_async_counts_every_push_once_and_an_error_of_the_program_ends_its_store():
    assert ranks()(asynchronous, n=2) == [(3, [51.0] * 3)] * 2


@pytest.mark.parametrize("kind", ["local", "device"])
def test_stores_of_one_process(kind):
    values = [torch.ones(3), np.full(3, 4, np.float32), torch.full((3,), 16.0)]
    found = {}
    for engine in ("mxnet", "d2lps"):
        with kvstore.create(kind, engine=engine) as mine:
            mine.init(["w", 5], [torch.zeros(3), torch.zeros(2, 2)])
            mine.push("w", values)
            mine.push("w", values[2])
            mine.pull("w", out=(first := torch.empty(3)))
            mine.push("w", values)
            mine.set_optimizer("sgd", lr=0.5, momentum=0.5)  # from the sum of the last push on
            for _ in range(2):
                outs = [torch.empty(3), torch.empty(2, 2)]
                mine.pushpull(["w", 5], [values[:2], torch.ones(2, 2)], out=outs)
            found[engine] = [first.tolist(), *(out.tolist() for out in outs), mine.rank, mine.num_workers, mine.type]
        for call in (mine.barrier, lambda mine=mine: mine.pull("w", out=first)):
            assert isinstance(outcome(call), Refused), "it is closed"
    assert found["mxnet"] == found["d2lps"]
    assert found["mxnet"][:2] == [[16.0] * 3, [21 - 0.5 * (5 + 7.5)] * 3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MXNet's import
def test_arrays_of_mxnet_and_torch_and_sparse_gradients_in_one_process(local):
    import mxnet as mx

    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 3, 1])).sum().backward()
    local.init(np.int64(3), torch.zeros(5, 2))
    local.pushpull(np.int32(3), table.weight.grad, out=(out := torch.empty(5, 2)))
    assert out[:, 0].tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]

    local.init(1, mx.nd.zeros((2, 3)))
    local.push(1, [mx.nd.ones((2, 3)), torch.full((2, 3), 4.0)])
    local.pull(1, out=[out := mx.nd.zeros((2, 3)), other := torch.zeros(2, 3)])
    assert out.asnumpy().tolist() == other.tolist() == [[5.0] * 3] * 2
    assert (torch.ones(300, 300) @ torch.ones(300, 300)).unique().tolist() == [300.0]
    assert mx.nd.dot(mx.nd.ones((300, 300)), mx.nd.ones((300, 300))).asnumpy().max() == 300


def test_every_dtype_of_mxnet_is_held(local):
    for dtype in DTYPES:
        local.init(str(dtype), torch.zeros(5, dtype=dtype))
        local.pushpull(str(dtype), [torch.full((5,), 3, dtype=dtype)] * 2, out=(out := torch.empty(5, dtype=dtype)))
        assert out.tolist() == [6] * 5


# ---------------------------------------------------------------- refusals


@pytest.fixture(scope="module")
def local():
    with kvstore.create("local", engine="mxnet") as mine:
        mine.init("w", torch.zeros(3, 2))
        mine.init("whole", torch.zeros(3, dtype=torch.int64))
        yield mine


CALLS = [
    (lambda s: s.init("w", torch.zeros(3)), "key 'w' is initialized already"),
    (lambda s: s.init("b", torch.zeros(3).bfloat16()), "of torch.bfloat16: MXNet holds values"),
    (lambda s: s.init("b", torch.zeros(3, dtype=torch.int8)), "of torch.int8: MXNet holds values"),
    (lambda s: s.init("b", torch.zeros(0)), "has 0 elements"),
    (lambda s: s.push("v", torch.zeros(3)), "key 'v' is not initialized"),
    (lambda s: s.push("w", torch.zeros(3)), "the pushed value has shape"),
    (lambda s: s.pull("w", out=torch.zeros(3, 2).double()), "out has shape"),
    (lambda s: s.row_sparse_pull("w", out=torch.zeros(1, 2), row_ids=torch.tensor([0])), "rows of sparse values"),
    (lambda s: s.save("file"), "MXNet saves no values"),
    (lambda s: s.load("file"), "MXNet saves no values"),
    (lambda s: s.trace("w"), "MXNet does not record times"),
    (lambda s: s.set_optimizer("sgd", lr=0.1), "key 'whole' is torch.int64: MXNet's sgd is for float32"),
    (lambda s: s.set_optimizer("ftrl", lr=0.1), "there is no optimizer 'ftrl'"),
    (lambda s: MX("dist_ssp"), "kind = 'dist_ssp': MXNet has local, device, dist_sync, dist_async"),
    (lambda s: MX("nccl"), "kind = 'nccl'"),
    (lambda s: MX("local", servers=2), "of kind 'local' has no option servers"),
    (lambda s: MX("dist_sync", staleness=2), "has no option staleness"),
    (lambda s: MX("local", deadline=0), "deadline = 0: give a number of seconds"),
]
MX = partial(kvstore.create, engine="mxnet")


@pytest.mark.parametrize("call, sentence", CALLS)
def test_unsupported_calls_and_stores_are_refused(local, call, sentence):
    with pytest.raises(Refused, match=sentence):
        call(local)
    local.pushpull("w", torch.ones(3, 2), out=(out := torch.empty(3, 2)))
    assert out.unique().tolist() == [1.0]


def test_unsupported_optimizers_are_refused():
    with MX("local") as mine:
        for rule, numbers, sentence in [
            ("adam", {"eps": 1e-3}, "eps = 0.001: adam of MXNet uses it in another place"),
            ("adagrad", {"eps": 0.0}, "eps = 0.0"),
            ("adagrad", {"weight_decay": 0.1}, "takes the weight decay out of the weight"),
            ("sgd", {"momentum": -0.5}, "momentum = -0.5: sgd takes 0 or more"),
        ]:
            with pytest.raises(Refused, match=sentence):
                mine.set_optimizer(rule, lr=0.1, **numbers)


def test_without_mxnet_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(Refused, match="needs MXNet 1.9.1, which is not installed here: pip install mxnet==1.9.1"):
        kvstore.create("local", engine="mxnet")


def test_a_broken_mxnet_is_named(monkeypatch, tmp_path):
    (tmp_path / "mxnet.py").write_text("raise OSError('libmxnet.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Refused, match="which does not run here: OSError: libmxnet.so: cannot open"):
        kvstore.create("local", engine="mxnet")


# ---------------------------------------------------------------- errors


def disagreeing(rank):
    """Disagree, and then wait for a worker that does not come."""
    errors = [outcome(lambda: created(rank, servers=1 + rank.number).__enter__())]
    with created(rank, servers=1, deadline=4.0) as mine:
        errors.append(outcome(lambda: mine.init("w", torch.zeros(3 + rank.number))))
        mine.init("w", torch.zeros(3))
        mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=(out := torch.empty(3)))
        mine.barrier()
        late = None
        if rank.number == 0:
            late = [outcome(lambda: mine.pushpull("w", out)), outcome(mine.barrier)]
        rank.meet()  # worker 1 has not come before
    errors.append(outcome(lambda: mine.push("w", out)))
    return [*map(str, errors), out.tolist(), late]


def test_workers_that_disagree_or_do_not_come_are_named():
    first, second = ranks()(disagreeing, n=2)
    for options, init, closed, out, *_ in first, second:
        assert "all workers must ask for the same store" in options and "all workers must init the same keys" in init
        assert closed == "this store is closed" and out == [5.0] * 3
    *_, errors = first
    assert [type(error) for error in errors] == [Timeout, Timeout]
    assert "has not done pull within 4 s" in str(errors[0]) and "this store has ended" in str(errors[1])


def until_killed(rank):
    with created(rank, servers=1) as mine:
        mine.init("w", torch.zeros(3))
        tell(mine._nodes.pids())
        mine.barrier()
        if rank.number:  # in a call of MXNet that does not return
            error = outcome(lambda: mine.pushpull("w", torch.ones(3)))
            return type(error).__name__, getattr(error, "ranks", ())
        time.sleep(600)


def test_a_worker_that_is_killed_leaves_nothing():
    with Ranks(2) as two:
        two.start(until_killed)
        first, second = ([pid for _, _, pid in two.said(rank)] for rank in range(2))
        pids = first + second
        where = [place.laddr for pid in pids for place in psutil.Process(pid).net_connections("tcp")]
        assert len(pids) == 4 and where and all(host.ip.startswith("127.") for host in where)
        time.sleep(0.5)
        two.signal(0, signal.SIGKILL)
        assert gone(first)
        assert two.results([1]) == [("WorkerLost", (0,))]
        assert gone(pids)


# ---------------------------------------------------------------- MXNet's scripts on our store


SCRIPT = """
import os
import mxnet as mx
import d2lps

kv = {create}("dist_sync")
shape, big, keys = (2, 3), (1200, 1000), [5, 7, 9]

kv.init(3, mx.nd.ones(shape) * 2)
kv.init(99, mx.nd.zeros(big))
kv.init(keys, [mx.nd.zeros(shape)] * len(keys))
a = mx.nd.zeros(shape)
kv.pull(3, out=a)
print(a.asnumpy().tolist())

for i in range(3):
    kv.push(3, mx.nd.ones(shape) * (kv.rank + 1), priority=-i)
    kv.pull(3, out=a, priority=-i)
    assert (a.asnumpy() == sum(range(1, kv.num_workers + 1))).all()

contexts = [mx.cpu(i) for i in range(4)]
kv.push(keys, [[mx.nd.ones(shape, context) for context in contexts]] * len(keys))
out = [[mx.nd.zeros(shape, context) for context in contexts] for _ in keys]
kv.pull(keys, out=out)
assert all((one.asnumpy() == 4 * kv.num_workers).all() for some in out for one in some)

kv.set_optimizer("sgd", lr=0.5, momentum=0.5, rescale_grad=1 / kv.num_workers)
kv.push(99, mx.nd.ones(big))
kv.push(99, mx.nd.ones(big))
b = mx.nd.zeros(big)
kv.pull(99, out=b)
assert (b.asnumpy() == -0.5 - 0.75).all()
kv.set_optimizer("adam", lr=0.1)
kv.pushpull(99, mx.nd.ones(big), out=b)
assert abs(b.asnumpy() + 1.35).max() < 1e-5
seen = [b.asnumpy().ravel()[:3].tolist(), kv.rank, kv.num_workers, kv.type]
os.write(1, (repr(seen) + "\\n").encode())
"""


def test_a_script_of_mxnet_runs_if_another_store_is_made_and_optimizers_have_names(tmp_path):
    """With ``mx.kv.create`` and optimizers of MXNet it prints the same, but its processes sometimes never end."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{create}", "d2lps.kvstore.create"))
    for rank, lines in enumerate(forked(script, 2)):
        values, *rest = ast.literal_eval(lines[-1])
        assert rest == [rank, 2, "dist_sync"] and values == pytest.approx([-1.35] * 3, rel=1e-4)
