"""``engine="mxnet"``: our programs on MXNet's ps-lite, with our errors and nothing left; and MXNet's scripts here."""

import ast
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Ranks, outcome, ranks, settled, tell

from d2lps import kvstore
from d2lps.kvstore import Refused, ServerLost, Timeout, WorkerLost
from d2lps.kvstore.pslite.limits import DTYPES

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="MXNet 1.9.1 is for Linux on x86-64"
)
pytestmark = [pytestmark, pytest.mark.slow]  # of several processes
LARGE = 1_200_000  # more than MXNet's bound, above which it cuts a key in parts


@contextmanager
def created(rank, kind="dist_sync", engine="mxnet", **options):
    """The store of this rank, and what was started for it; none of it is there afterwards."""
    os.environ.update(rank.environment)
    with kvstore.create(kind, engine=engine, **options) as found:
        pids = [pid for _, _, pid in found._nodes.pids()] if engine == "mxnet" else []
        yield found
    assert gone(pids), "a process is left behind"


def gone(pids, seconds=10.0) -> bool:
    return settled(lambda: any(map(psutil.pid_exists, pids)), False, seconds) is False


# ---------------------------------------------------------------- the same program


def sums(mine):
    """What a worker sees: pushes of 4^rank, so that the digits of a sum in base 4 say who was counted how often."""
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


def both(rank, program, *arguments, **options):
    """What the program sees on MXNet, and here."""
    found = []
    for engine in ("mxnet", "d2lps"):
        with created(rank, engine=engine, **options) as mine:
            found.append(program(mine, *arguments))
    return found


def on_both(rank):
    return both(rank, sums, servers=2)


def test_workers_get_the_same_sums_as_from_our_servers():
    for theirs, ours in ranks()(on_both, n=2):
        assert theirs == ours
    assert theirs[0] == [[7.0] * 3] * 2 and theirs[1:4] == [[5.0], [10.0] * 5, [5]]


def test_torchrun_starts_the_workers(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(
        textwrap.dedent("""
        import os, torch
        from d2lps import kvstore

        for _ in range(2):  # a second one in the same process, after the first and without a close
            mine = kvstore.create("dist_sync", engine="mxnet", servers=2)
            mine.init("w", torch.zeros(3))
            for _ in range(3):
                mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=(out := torch.empty(3)))
            pids = [pid for _, _, pid in mine._nodes.pids()]
            os.write(1, f"{mine.rank} {mine.num_workers} {out.tolist()} pids {pids}\\n".encode())
    """)
    )
    ask = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        str(script),
    ]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    said = [line.split(" pids ") for line in done.stdout.splitlines()]
    assert sorted(line for line, _ in said) == sorted([f"{rank} 2 [5.0, 5.0, 5.0]" for rank in range(2)] * 2)
    pids = [pid for _, some in said for pid in eval(some)]
    assert len(pids) == 2 * (4 + 1) and gone(pids)


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


def optimized(rank):
    return both(rank, steps, servers=1)


def test_optimizers_take_the_same_steps():
    for theirs, ours in ranks()(optimized, n=2):
        for rule, one, other in zip(RULES, theirs, ours, strict=True):
            assert torch.allclose(one, other, rtol=2e-5, atol=2e-6), (rule, one - other)


def asynchronous(rank):
    with created(rank, "dist_async", servers=2) as mine:
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
        return own, out.tolist()


def test_dist_async_counts_every_push_once():
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
    assert found["mxnet"] == found["d2lps"]
    assert found["mxnet"][:2] == [[16.0] * 3, [21 - 0.5 * (5 + 7.5)] * 3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MXNet's import
def test_arrays_of_mxnet_and_torch_in_one_process():
    import mxnet as mx

    with kvstore.create("local", engine="mxnet") as mine:
        mine.init(1, mx.nd.zeros((2, 3)))
        mine.push(1, [mx.nd.ones((2, 3)), torch.full((2, 3), 4.0)])
        mine.pull(1, out=[out := mx.nd.zeros((2, 3)), other := torch.zeros(2, 3)])
        assert out.asnumpy().tolist() == other.tolist() == [[5.0] * 3] * 2
    assert (torch.ones(300, 300) @ torch.ones(300, 300)).unique().tolist() == [300.0]
    assert mx.nd.dot(mx.nd.ones((300, 300)), mx.nd.ones((300, 300))).asnumpy().max() == 300


# ---------------------------------------------------------------- what it refuses


@pytest.fixture(scope="module")
def local():
    with kvstore.create("local", engine="mxnet") as mine:
        mine.init("w", torch.zeros(3, 2))
        mine.init("whole", torch.zeros(3, dtype=torch.int64))
        yield mine


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda s: s.init("w", torch.zeros(3)), "key 'w' is initialized already"),
        (lambda s: s.init("b", torch.zeros(3).bfloat16()), "of torch.bfloat16: MXNet holds values"),
        (lambda s: s.init("b", torch.zeros(3, dtype=torch.int8)), "of torch.int8: MXNet holds values"),
        (lambda s: s.init("b", torch.zeros(0)), "has 0 elements"),
        (lambda s: s.push("v", torch.zeros(3)), "key 'v' is not initialized"),
        (lambda s: s.push("w", torch.zeros(3)), "the pushed value has shape"),
        (lambda s: s.pull("w", out=torch.zeros(3, 2).double()), "out has shape"),
        (
            lambda s: s.row_sparse_pull("w", out=torch.zeros(1, 2), row_ids=[torch.tensor([0])][0]),
            "rows of sparse values",
        ),
        (lambda s: s.save("file"), "MXNet saves no values"),
        (lambda s: s.load("file"), "MXNet saves no values"),
        (lambda s: s.trace("w"), "MXNet tells no times"),
        (lambda s: s.set_optimizer("sgd", lr=0.1), "key 'whole' is torch.int64: MXNet's sgd is for float32"),
        (lambda s: s.set_optimizer("ftrl", lr=0.1), "there is no optimizer 'ftrl'"),
    ],
)
def test_what_it_will_not_do(local, call, sentence):
    with pytest.raises(Refused, match=sentence):
        call(local)
    local.pushpull("w", torch.ones(3, 2), out=(out := torch.empty(3, 2)))
    assert out.unique().tolist() == [1.0]


@pytest.mark.parametrize(
    "rule, numbers, sentence",
    [
        ("adam", {"eps": 1e-3}, "eps = 0.001: adam of MXNet has it in another place"),
        ("adagrad", {"eps": 0.0}, "eps = 0.0"),
        ("adagrad", {"weight_decay": 0.1}, "takes the weight decay out of the weight"),
        ("sgd", {"momentum": -0.5}, "momentum = -0.5: sgd takes 0 or more"),
    ],
)
def test_optimizers_that_mxnet_takes_other_steps_for(rule, numbers, sentence):
    with kvstore.create("local", engine="mxnet") as mine, pytest.raises(Refused, match=sentence):
        mine.set_optimizer(rule, lr=0.1, **numbers)


@pytest.mark.parametrize(
    "kind, options, sentence",
    [
        ("dist_ssp", {}, "kind = 'dist_ssp': MXNet has local, device, dist_sync, dist_async"),
        ("nccl", {}, "kind = 'nccl'"),
        ("local", {"servers": 2}, "of kind 'local' has no option servers"),
        ("dist_sync", {"staleness": 2}, "has no option staleness"),
        ("local", {"deadline": 0}, "deadline = 0: seconds"),
    ],
)
def test_stores_that_there_are_not(kind, options, sentence):
    with pytest.raises(Refused, match=sentence):
        kvstore.create(kind, engine="mxnet", **options)


def test_without_mxnet_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(Refused, match="needs MXNet 1.9.1, which is not installed here: pip install mxnet==1.9.1"):
        kvstore.create("local", engine="mxnet")


def test_a_broken_mxnet_says_what_is_broken(monkeypatch, tmp_path):
    (tmp_path / "mxnet.py").write_text("raise OSError('libmxnet.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Refused, match="which does not run here: OSError: libmxnet.so: cannot open"):
        kvstore.create("local", engine="mxnet")


def disagreeing(rank):
    found = [outcome(lambda: created(rank, servers=1 + rank.number).__enter__())]
    with created(rank, servers=1, deadline=10.0) as mine:
        found.append(outcome(lambda: mine.init("w", torch.zeros(3 + rank.number))))
        mine.init("w", torch.zeros(3))
        mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=(out := torch.empty(3)))
    found.append(outcome(lambda: mine.push("w", out)))
    return [*map(str, found), out.tolist()]


def test_workers_that_disagree_hear_of_it():
    for options, init, closed, out in ranks()(disagreeing, n=2):
        assert "all workers must ask for the same store" in options and "all workers init the same keys" in init
        assert closed == "this store is closed" and out == [5.0] * 3


# ---------------------------------------------------------------- what goes wrong


def nobody_comes(rank):
    with created(rank, servers=1, deadline=1.5) as mine:
        mine.init("w", torch.zeros(3))
        mine.barrier()
        if rank.number:
            time.sleep(3)
            return None
        begin = time.monotonic()
        errors = [outcome(lambda: mine.pushpull("w", torch.ones(3))), outcome(mine.barrier)]
        return time.monotonic() - begin, errors


def test_mxnet_that_waits_for_ever_is_a_timeout():
    (took, errors), _ = ranks()(nobody_comes, n=2)
    assert [type(error) for error in errors] == [Timeout, Timeout] and 1.4 < took < 4
    assert "has not done pull within 1.5 s" in str(errors[0]) and "this store is at its end" in str(errors[1])


def something_ends(rank, name, number):
    with created(rank, servers=2, deadline=20.0) as mine:
        mine.init("w", torch.zeros(LARGE))
        mine.pushpull("w", torch.ones(LARGE))
        mine.barrier()
        for theirs, which, pid in mine._nodes.pids():
            if (theirs, which) == (name, number):
                os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        error = outcome(lambda: mine.pushpull("w", torch.ones(LARGE)))
        again = outcome(mine.barrier)
        assert type(again) is type(error) and vars(again) == vars(error) and "is at its end" in str(again)
        return type(error).__name__, getattr(error, "servers", ()) or getattr(error, "ranks", ()), str(error), begin


@pytest.mark.parametrize("name, number, kind", [("server", 1, ServerLost), ("worker", 1, WorkerLost)])
def test_a_process_of_mxnet_that_is_killed_is_named(name, number, kind):
    for error, which, sentence, begin in ranks()(something_ends, name, number, n=2):
        assert (error, which) == (kind.__name__, (number,)) and f"{name} {number}" in sentence
        assert time.monotonic() - begin < 20.0


def killed(rank):
    with created(rank, servers=2) as mine:
        mine.init("w", torch.zeros(3))
        tell(mine._nodes.pids())
        mine.barrier()
        if rank.number:  # in a call of MXNet that does not return
            error = outcome(lambda: mine.pushpull("w", torch.ones(3)))
            return type(error).__name__, getattr(error, "ranks", ())
        time.sleep(60)


def test_a_worker_that_is_killed_leaves_nothing():
    with Ranks(2) as two:
        two.start(killed)
        first, second = ([pid for _, _, pid in two.said(rank)] for rank in range(2))
        pids = first + second
        where = [place.laddr for pid in pids for place in psutil.Process(pid).net_connections("tcp")]
        assert (len(first), len(second)) == (3, 2) and where and all(host.ip.startswith("127.") for host in where)
        time.sleep(0.5)
        begin = time.monotonic()
        two.signal(0, signal.SIGKILL)
        assert gone(first, 5)
        assert two.results([1]) == [("WorkerLost", (0,))] and time.monotonic() - begin < 10
        assert gone(pids)


def left_with_an_error(rank):
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError), created(rank, servers=1) as mine:
        mine.init("w", torch.zeros(3))
        mine.barrier()
        pids = [pid for _, _, pid in mine._nodes.pids()]
        raise ZeroDivisionError
    assert gone(pids)
    return time.monotonic() - begin


def test_an_error_of_the_program_ends_all_of_it():
    assert max(ranks()(left_with_an_error, n=2)) < 25


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

kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5, wd=0.0, rescale_grad=1 / kv.num_workers))
kv.push(99, mx.nd.ones(big))
kv.push(99, mx.nd.ones(big))
b = mx.nd.zeros(big)
kv.pull(99, out=b)
assert (b.asnumpy() == -0.5 - 0.75).all()
kv.set_optimizer(mx.optimizer.create("adam", learning_rate=0.1))
kv.pushpull(99, mx.nd.ones(big), out=b)
assert abs(b.asnumpy() + 1.35).max() < 1e-5
seen = [b.asnumpy().ravel()[:3].tolist(), kv.rank, kv.num_workers, kv.type]
os.write(1, (repr(seen) + "\\n").encode())
"""


@contextmanager
def our_cluster():
    meeting = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    usual = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    yield [usual | {"RANK": str(rank)} for rank in range(2)]


def test_a_script_of_mxnet_runs_after_one_line_is_changed(tmp_path):
    """With ``mx.kv.create`` it says the same, but its processes now and then wait for ever when they leave."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{create}", "d2lps.kvstore.create"))
    with our_cluster() as environments:
        running = [
            subprocess.Popen(
                [sys.executable, str(script)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            )
            for environment in environments
        ]
        try:
            said = [process.communicate(timeout=100) for process in running]
        finally:
            for process in running:
                process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    for rank, (out, _) in enumerate(said):
        values, *rest = ast.literal_eval(out.splitlines()[-1])
        assert rest == [rank, 2, "dist_sync"] and values == pytest.approx([-1.35] * 3, rel=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_optimizers_of_mxnet_are_read():
    import mxnet as mx

    from d2lps.kvstore.optimizers import of_mxnet

    assert of_mxnet(mx.optimizer.SGD(learning_rate=0.5, momentum=0.9, wd=0.01, rescale_grad=0.25)) == (
        "sgd",
        {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, "rescale_grad": 0.25},
    )
    adam = {"lr": 0.001, "weight_decay": 0.0, "rescale_grad": 1.0, "beta1": 0.8, "beta2": 0.999, "eps": 1e-8}
    assert of_mxnet(mx.optimizer.Adam(beta1=0.8)) == ("adam", adam)
    with pytest.raises(Refused, match="NAG"):
        of_mxnet(mx.optimizer.NAG())


def test_every_dtype_of_mxnet_is_held():
    with kvstore.create("local", engine="mxnet") as mine:
        for dtype in DTYPES:
            mine.init(str(dtype), torch.zeros(5, dtype=dtype))
            mine.pushpull(str(dtype), [torch.full((5,), 3, dtype=dtype)] * 2, out=(out := torch.empty(5, dtype=dtype)))
            assert out.tolist() == [6] * 5
    for call in (mine.barrier, lambda: mine.pull("x", out)):
        assert isinstance(outcome(call), Refused), "it is closed"
