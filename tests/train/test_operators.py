"""Schedules of operators on real tensors: the gradients of one device, the bytes of the formula, and refusals."""

import os
import signal
from functools import partial

import pytest
import torch
from helpers import tensors
from helpers.ranks import DEADLINE, ranks, survivors
from torch.nn.functional import cross_entropy, gelu

from d2lps import Processes, Trace, reduce_scatter, ring
from d2lps.carriers.rendezvous import ProcessesError, RankLost
from d2lps.schedule import Collective, Schedule, Task, Value, hybrid, place, tensor_mlp
from d2lps.train.operators import MLP, OperatorError, mlp_tensors, operators, run

NODES = ["a", "b", "c", "d", "e", "f"]
FORWARD = {"op1": lambda x, w: gelu(x @ w), "op2": lambda x, w: torch.tanh(x @ w), "op3": lambda x, w: x @ w}
WIDTHS = 30, 20, 12, 5
close = partial(tensors.close, added=60 + sum(WIDTHS))


def mlp(devices, rows=6, width=8, hidden=60):
    torch.manual_seed(0)
    shapes = (rows, width), (width, hidden), (hidden, width), (rows, width)
    tensors = [torch.randn(shape) for shape in shapes]
    return tensor_mlp(devices, rows, width, hidden), mlp_tensors(devices, *tensors), tensors


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_cut_mlp_has_the_gradients_of_one_device_and_the_bytes_of_the_formula(count):
    devices = NODES[:count]
    schedule, held, (x, A, B, dy) = mlp(devices)
    values, trace = run(schedule, MLP, held)
    whole = [tensor.clone().requires_grad_() for tensor in (x, A, B)]
    y = gelu(whole[0] @ whole[1]) @ whole[2]
    y.backward(dy)
    for node, columns, rows in zip(devices, whole[1].grad.chunk(count, 1), whole[2].grad.chunk(count), strict=True):
        for name, right in {"y": y, "dx": whole[0].grad, f"dA:{node}": columns, f"dB:{node}": rows}.items():
            close(values[node, name], right.detach())
    assert sum(map(trace.bytes_sent, devices)) == 2 * 2 * (count - 1) * x.numel() * 4
    assert trace.measured and Trace.from_json(trace.to_json()) == trace and 0 <= trace.bubble() < 1


def placed(devices, homes, rows=6):
    """Return a schedule of three operators, its tensors, and loss and gradients of one device."""
    torch.manual_seed(1)
    weights = [torch.randn(pair) / 4 for pair in zip(WIDTHS, WIDTHS[1:], strict=False)]
    x, labels = torch.randn(rows, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (rows,))
    needed = {name: 8 * weight.numel() for name, weight in zip(FORWARD, weights, strict=True)}
    schedule = place(needed, homes, dict.fromkeys(devices, 10**6), [4 * rows * width for width in WIDTHS], rows)
    own = {"x0": x, "labels": labels}
    for name, weight in zip(FORWARD, weights, strict=True):
        nodes = [homes[name]] if isinstance(homes[name], str) else homes[name]
        own |= {f"w:{name}:{node}": part for node, part in zip(nodes, weight.chunk(len(nodes), 1), strict=True)}
    whole, y = [weight.clone().requires_grad_() for weight in weights], x
    for function, weight in zip(FORWARD.values(), whole, strict=True):
        y = function(y, weight)
    loss = cross_entropy(y, labels)
    loss.backward()
    right = {name: weight.grad for name, weight in zip(FORWARD, whole, strict=True)}
    return schedule, {(node, name): own[name] for node, name in schedule.holds}, loss.detach(), right


@pytest.mark.parametrize(
    "homes, nbytes",
    [
        ({"op1": "a", "op2": "a", "op3": "a"}, 0),
        ({"op1": "a", "op2": "b", "op3": "c"}, 2 * 6 * 4 * (20 + 12)),
        ({"op1": ["a", "b"], "op2": "b", "op3": "b"}, 6 * 4 * (30 + 20)),
        ({"op1": ["a", "b"], "op2": ["b", "c"], "op3": "a"}, 6 * 4 * (30 + 2 * (10 + 20) + 2 * 12)),
        ({"op1": ["a", "b"], "op2": ["a", "b", "c", "d"], "op3": ["a"]}, 6 * 4 * (30 + 2 * 3 * 20 + 2 * 9)),
        ({"op1": "b", "op2": ["c", "a"], "op3": ["b", "a", "c", "d", "e"]}, None),
    ],
)
def test_operators_on_several_devices_have_the_gradients_of_one(homes, nbytes):
    schedule, held, loss, right = placed(NODES, homes)
    values, trace = run(schedule, operators(FORWARD, examples=6), held)
    close(next(value for (_, name), value in values.items() if name == "loss"), loss)
    for name, gradient in right.items():
        nodes = [homes[name]] if isinstance(homes[name], str) else homes[name]
        close(torch.cat([values[node, f"g:{name}:{node}"] for node in nodes], 1), gradient)
    if nbytes is not None:
        assert sum(map(trace.bytes_sent, NODES)) == nbytes
    assert [event.kind for event in trace.events].count("task") == len(schedule.tasks)


def replicated(devices, rows=6):
    """Return a hybrid schedule of three operators, its tensors, and loss and gradients of one device."""
    _, held, loss, right = placed(devices, dict.fromkeys(FORWARD, devices[0]), rows)
    count, needed = len(devices) // 3, {name: 8 * gradient.numel() for name, gradient in right.items()}
    data = [4 * rows // count * width for width in WIDTHS]
    schedule = hybrid(needed, devices, data=data, rows=rows // count)
    own = {f"w:{name}": held[devices[0], f"w:{name}:{devices[0]}"] for name in FORWARD}
    for r in range(count):
        part = slice(r * rows // count, (r + 1) * rows // count)
        own |= {f"x0.{r}": held[devices[0], "x0"][part], f"labels.{r}": held[devices[0], "labels"][part]}
    return schedule, {(node, name): own[name] for node, name in schedule.holds}, loss, right


@pytest.mark.parametrize("count", [1, 2, 3])
def test_replicas_of_operators_on_devices_of_their_own(count):
    devices = [f"gpu{i}" for i in range(3 * count)]
    schedule, held, loss, right = replicated(devices)
    values, trace = run(schedule, operators(FORWARD, examples=6), held)
    close(sum(value for (_, name), value in values.items() if name.startswith("loss")), loss)
    for i, (name, gradient) in enumerate(right.items()):
        for node in devices[i::3]:
            close(values[node, f"g:{name}"], gradient)
    weights, between = sum(gradient.nbytes for gradient in right.values()), 2 * 6 * 4 * (20 + 12)
    assert sum(map(trace.bytes_sent, devices)) == 2 * (count - 1) * weights + between
    pairs = {(event.src, event.dst) for event in trace.events if event.key.startswith("g:op2")}
    assert {node for pair in pairs for node in pair} == set(devices[1::3] if count > 1 else ())


# ---------------------------------------------------------------- over gloo


def in_processes(rank, what, count):
    torch.set_num_threads(1)
    carrier = rank.carrier(Processes, NODES[rank.number : rank.number + 1], backend="gloo")
    if what == "mlp":
        schedule, held, _ = mlp(NODES[:count])
        results = run(schedule, MLP, held, carrier)
    elif what == "hybrid":
        schedule, held, _, _ = replicated(NODES[:count])
        results = run(schedule, operators(FORWARD, examples=6), held, carrier)
    else:
        schedule, held, _, _ = placed(NODES[:count], HOMES)
        results = run(schedule, operators(FORWARD, examples=6), held, carrier)
    carrier.close()
    values, trace = results
    return values, [trace.bytes_sent(node) for node in NODES[:count]], len(trace.events)


HOMES = {"op1": ["a", "b"], "op2": ["b", "c"], "op3": "a"}


@pytest.mark.parametrize("what, count", [("mlp", 3), ("place", 3), ("hybrid", 6)])
def test_processes_have_the_bits_of_one(what, count):
    torch.set_num_threads(1)
    if what == "mlp":
        schedule, held, _ = mlp(NODES[:count])
        alone, trace = run(schedule, MLP, held)
    elif what == "hybrid":
        schedule, held, _, _ = replicated(NODES[:count])
        alone, trace = run(schedule, operators(FORWARD, examples=6), held)
    else:
        schedule, held, _, _ = placed(NODES[:count], HOMES)
        alone, trace = run(schedule, operators(FORWARD, examples=6), held)
    results = ranks()(in_processes, what, count, n=count)
    together = {pair: value for values, _, _ in results for pair, value in values.items()}
    assert together.keys() == alone.keys() and all(torch.equal(together[pair], alone[pair]) for pair in alone)
    assert results[0][1] == [trace.bytes_sent(node) for node in NODES[:count]]
    assert results[0][2] == len(trace.events)


def until_one_dies(rank):
    carrier = rank.carrier(Processes, NODES[rank.number : rank.number + 1], backend="gloo", deadline=DEADLINE)
    schedule, held, _ = mlp(NODES[:2])
    for step in range(100_000):
        if rank.number == 1 and step == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            run(schedule, MLP, held, carrier)
        except RankLost as error:
            return str(error)


def test_a_rank_that_dies_is_named():
    (sentence,) = survivors(until_one_dies, size=2, lost=1)
    assert "rank 1" in sentence


def with_nan_on_one(rank):
    carrier = rank.carrier(Processes, NODES[rank.number : rank.number + 1], backend="gloo")
    schedule, held, _ = mlp(NODES[:2])
    if rank.number:
        held["b", "A:b"] = held["b", "A:b"] * float("nan")
    try:
        run(schedule, MLP, held, carrier)
    except (OperatorError, ProcessesError) as error:
        return str(error)


def test_what_is_not_finite_on_one_process_is_named_on_all():
    for sentence in ranks()(with_nan_on_one, n=2):
        assert "b Fmlp: u:b is not finite" in sentence


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda s, c, t: (ring(["a", "b"]), c, t), "run wants a Schedule, such as .* not a Plan"),
        (lambda s, c, t: (s, {"Fmlp": c["Fmlp"]}, t), "no function does a Bmlp: give compute one with the name 'Bmlp'"),
        (lambda s, c, t: (s, c, {pair: t[pair] for pair in t if pair != ("b", "x")}), "b holds x before"),
        (lambda s, c, t: (s, c, t | {("b", "x"): torch.ones(2, 8)}), "x on b has 64 bytes, but 192 in the schedule"),
        (lambda s, c, t: (s, c | {"Fmlp": lambda x, A, B: x}, t), "a Fmlp makes 2 values, but its function returned 1"),
        (lambda s, c, t: (s, c, t | {("a", "x"): t["a", "x"] * float("nan")}), "a Fmlp: u:a is not finite"),
    ],
)
def test_what_does_not_fit_is_refused(change, sentence):
    schedule, held, _ = mlp(["a", "b"])
    with pytest.raises(OperatorError, match=sentence):
        run(*change(schedule, MLP, held))


def test_other_collectives_are_refused():
    values = {"g": Value(8, ("a", "b"))}
    acts = [Task(node, "B", "", None, (), (("g", node),)) for node in "ab"]
    schedule = Schedule(["a", "b"], values, [*acts, Collective(reduce_scatter(["a", "b"]), "g")])
    with pytest.raises(OperatorError, match="a,b ∑g is no all-reduce"):
        run(schedule, {"B": lambda: torch.ones(2)}, {})
