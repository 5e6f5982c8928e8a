"""Pipelines on real tensors have the bits of one device, in one process and in several, and say what does not fit."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from helpers.ranks import DEADLINE, ranks, survivors
from helpers.tensors import close
from torch import nn

from d2lps import Processes, Trace, ring
from d2lps.carriers.rendezvous import RankLost
from d2lps.schedule import gpipe, interleaved, one_f_one_b, pipeline, tensor_mlp, zero_bubble
from d2lps.train.pipeline import PipelineError, one_device, run, split

FOUR = {"gpipe": gpipe, "1F1B": one_f_one_b, "zero bubble": zero_bubble}


def stages(count=4):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 16), nn.ReLU())]
    layers += [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(count - 2)]
    return [*layers, nn.Linear(16, 5)] if count > 1 else [nn.Linear(8, 5)]


def batch(examples=22):
    torch.manual_seed(1)
    return torch.randn(examples, 8), torch.randint(0, 5, (examples,))


def gradients(modules):
    return [parameter.grad.clone() for module in modules for parameter in module.parameters()]


def expected(count, micro):
    alone = stages(count)
    return one_device(alone, batch(), micro), gradients(alone)


@pytest.mark.parametrize("micro", [1, 3, 4, 8])
@pytest.mark.parametrize("name", FOUR)
def test_every_schedule_has_the_bits_of_one_device(name, micro):
    loss, right = expected(4, micro)
    modules = stages()
    measured, trace = run(pipeline(FOUR[name](4, micro)), modules, batch())
    assert measured == loss and all(map(torch.equal, gradients(modules), right))
    assert trace.measured and Trace.from_json(trace.to_json()) == trace and 0 <= trace.bubble() < 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_have_other_numbers_of_stages(count):
    loss, right = expected(count, 4)
    modules = stages(count)
    assert run(pipeline(one_f_one_b(count, 4)), modules, batch())[0] == loss
    assert all(map(torch.equal, gradients(modules), right))


def test_several_stages_per_device():
    loss, right = expected(4, 4)
    modules = stages()
    assert run(pipeline(interleaved(2, 4, 2)), modules, batch())[0] == loss
    assert all(map(torch.equal, gradients(modules), right))


def test_the_mean_of_uneven_micro_batches_is_that_of_the_batch():
    modules, whole = stages(), stages()
    run(pipeline(gpipe(4, 3)), modules, batch())
    one_device(whole, batch(), 1)
    for ours, theirs in zip(gradients(modules), gradients(whole), strict=True):
        close(ours, theirs, 22 + 4 * 16)
    assert [len(labels) for _, labels in split(batch(), 4)] == [6, 6, 5, 5]


def in_processes(rank, name, micro):
    torch.set_num_threads(1)
    carrier = rank.carrier(Processes, backend="gloo")
    modules = stages()
    schedule = pipeline(FOUR[name](4, micro)) if name != "interleaved" else pipeline(interleaved(2, micro, 2))
    own = {i: module for i, module in enumerate(modules) if i % rank.size == rank.number}
    loss, trace = run(schedule, own, batch(), carrier)
    carrier.close()
    return loss, {i: gradients([module]) for i, module in own.items()}, [trace.bytes_sent(n) for n in schedule.nodes]


@pytest.mark.parametrize("name, size", [("gpipe", 4), ("1F1B", 4), ("zero bubble", 4), ("interleaved", 2)])
def test_processes_have_the_bits_of_one_device(name, size):
    loss, right = expected(4, 4)
    results = ranks()(in_processes, name, 4, n=size)
    assert [found for found, _, _ in results if found is not None] == [loss]
    found = {i: grads for _, own, _ in results for i, grads in own.items()}
    assert all(map(torch.equal, [grad for i in range(4) for grad in found[i]], right))
    activation = 22 * 16 * 4  # of all micro-batches, over one boundary, one way
    inside = [activation, 2 * activation, 2 * activation, activation] if size == 4 else [3 * activation, 3 * activation]
    assert results[0][2] == inside


def until_one_dies(rank):
    carrier = rank.carrier(Processes, backend="gloo", deadline=DEADLINE)
    schedule, modules = pipeline(one_f_one_b(2, 4)), stages(2)
    for step in range(100_000):
        if rank.number == 1 and step == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            run(schedule, {rank.number: modules[rank.number]}, batch(), carrier)
        except RankLost as error:
            return str(error)


def test_a_rank_that_dies_in_the_middle_is_named():
    (sentence,) = survivors(until_one_dies, size=2, lost=1)
    assert "rank 1" in sentence


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: run(ring(["a", "b"]), stages(2), batch()), "run wants a Schedule"),
        (lambda: run(tensor_mlp(["a"]), stages(1), batch()), "is no task of a pipeline"),
        (lambda: run(pipeline(gpipe(4, 2)), stages(4)[:3], batch()), "stage 3 is missing"),
        (lambda: run(pipeline(gpipe(2, 8)), stages(2), batch(5)), "5 examples cannot be cut into 8 micro-batches"),
        (lambda: run(pipeline(gpipe(2, 2)), stages(2), (batch()[0], batch()[1][:3])), "22 inputs and 3 labels"),
        (
            lambda: run(pipeline(gpipe(2, 2)), [nn.Flatten(0), nn.Linear(16, 5)], batch()),
            "turns 11 examples into 88 rows",
        ),
        (
            lambda: run(pipeline(gpipe(2, 2)), stages(2), (batch()[0] * float("nan"), batch()[1])),
            "micro-batch 0 is nan",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, sentence):
    with pytest.raises(PipelineError, match=sentence):
        make()


COUNTED = """
import os, sys, torch
from torch import nn
from d2lps import Processes
from d2lps.schedule import one_f_one_b, pipeline
from d2lps.train.pipeline import run

def sent():
    return int(next(line for line in open("/proc/net/dev") if line.strip().startswith("lo:")).split(":")[1].split()[8])

rank = int(os.environ["RANK"])
torch.manual_seed(0)
stages = [nn.Linear(8, 4096), nn.Linear(4096, 5)]
carrier = Processes(backend="gloo", deadline=60)
schedule, batch = pipeline(one_f_one_b(2, 8)), (torch.randn(1024, 8), torch.randint(0, 5, (1024,)))
carrier.barrier()
before = sent()
carrier.barrier()
loss, trace = run(schedule, {rank: stages[rank]}, batch, carrier)
carrier.barrier()
if rank == 0:
    print(sent() - before, sum(trace.bytes_sent(node) for node in schedule.nodes))
carrier.close()
"""


def test_the_interface_counts_the_bytes_of_the_trace():
    """Two ranks alone in a network namespace: its loopback carries the messages, and little else."""
    both = """ip link set lo up && (RANK=0 "$PYTHON" -c "$CODE" & RANK=1 "$PYTHON" -c "$CODE" & wait)"""
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29731"}
    variables = os.environ | meeting | {"PYTHON": sys.executable, "CODE": COUNTED}
    command = ["unshare", "-Urn", "sh", "-c", both]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    counted, traced = map(int, done.stdout.split()) if done.returncode == 0 and done.stdout else (0, done.stderr)
    assert traced == 2 * 1024 * 4096 * 4, traced
    assert 1 <= counted / traced < 1.01
