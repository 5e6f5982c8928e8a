"""A real training of two ranks, profiled and recorded on this machine, read and divided."""

import re

import pytest
from helpers.scripts import forked

from d2lps import Trace
from d2lps.__main__ import main
from d2lps.profile import compare, divide, read, read_dumps

PROGRAM = """
import os
from pathlib import Path
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.nn import GELU, Linear, Sequential
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(__file__).parent
torch.manual_seed(rank)
net = Sequential(Linear(256, 512), GELU(), Linear(512, 512), GELU(), Linear(512, 10))
net = DistributedDataParallel(net, bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(320, 256), torch.randint(10, (320,))), batch_size=64)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3)) as profiler:
    for inputs, labels in data:
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
profiler.export_chrome_trace(str(folder / f"rank{rank}.json.gz"))
if rank == 0:
    dist.broadcast(torch.ones(3), 0, async_op=True)
(folder / f"dump_rank_{rank}").write_bytes(_dump_fr_trace(True, True, False))
os._exit(0)  # rank 1 never comes to the broadcast
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(PROGRAM)
    forked(folder / "train.py", 2, TORCH_FR_BUFFER_SIZE="200")
    return folder


@pytest.fixture
def traces(trained):
    return sorted(trained.glob("rank*.json.gz"))


def test_parts_of_a_real_step_add_up_to_it(traces):
    found = divide(read(traces))
    assert [(each.rank, each.step) for each in found] == [(rank, step) for rank in (0, 1) for step in (2, 3, 4)]
    for each in found:
        assert sum(each.parts.values()) == pytest.approx(each.seconds, rel=1e-9)
        assert min(each.parts[part] for part in ("matrices", "others", "loading", "idle")) > 0
        sent = each.parts.get("all_reduce", 0) + each.hidden["all_reduce"] + each.parts.get("waiting", 0)
        assert 0 < sent < each.seconds


def test_buckets_of_both_ranks_meet_in_the_trace(traces):
    """DDP has a bucket for the last two layers, and one for the first."""
    trace = Trace.from_kineto(traces, step=3)
    taken = {(e.src.partition("/")[0], e.key) for e in trace.events if e.op == "A"}
    assert len(taken) % 2 == 0 and {rank for rank, _ in taken} == {"rank0", "rank1"}
    sends = [event for event in trace.events if event.kind == "send"]
    assert sends and all({e.src[:5], e.dst[:5]} == {"rank0", "rank1"} for e in sends)


def test_the_command_shows_the_real_steps(traces, tmp_path, capsys):
    assert main(["step", *map(str, traces), "--player", str(tmp_path / "step.html")]) == 0
    line, head, *rows, said, written = capsys.readouterr().out.splitlines()
    assert re.match(r"CPU ×2, steps: 2–4, [\d.]+ ms per step$", line) and head.split() == ["rank", "0", "1"]
    assert any(row.startswith("products of matrices ") for row in rows) and "rank" in said.lower()
    assert written.endswith("step.html") and "<script" in (tmp_path / "step.html").read_text("utf-8")


def test_dumps_of_real_ranks_show_the_broadcast_that_one_lacks(trained):
    """DDP itself broadcasts, so the numbers are not known beforehand; the line is that of the program."""
    (found,) = [each for each in compare(read_dumps(trained.glob("dump_rank_*"))) if each.kind == "missing"]
    assert found.ranks == (1,) and [*found.called.values()] == [(0,)]
    assert re.fullmatch(r"broadcast\(3 Float\) train.py:\d+", next(iter(found.called)))
