"""Run a plan on real tensors.

>>> import torch
>>> from d2lps import aggregate_at, run
>>> gradients = {"gpu0": torch.tensor([1.0, 2.0]), "gpu1": torch.tensor([10.0, 20.0])}
>>> trace = run(aggregate_at(["gpu0", "gpu1"], "gpu0"), gradients)
>>> gradients["gpu1"]
tensor([11., 22.])
>>> trace.measured, trace.bytes_sent("gpu1")
(True, 8)

A plan is compiled into the program of each process (:mod:`d2lps.carriers.base`), and a *carrier* executes it.
Everything is checked before the first byte moves: a run that is refused leaves the tensors unchanged.
"""

from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.base import Carrier, Executed, Program
from d2lps.carriers.here import Here
from d2lps.carriers.reductions import SUM, Reduction, reduction, require_usable
from d2lps.carriers.tensors import TensorError, require_fitting, require_updatable
from d2lps.messages import text
from d2lps.plan.acts import Send, Update, sends, updates
from d2lps.plan.plan import Plan
from d2lps.topology import Topology
from d2lps.trace import Trace, event, pairs


class Executable(NamedTuple):
    """The program of this process; each call of ``execute`` executes it once."""

    program: Program
    execute: Callable[[], Executed]


@torch.no_grad()
def compile(
    plan: Plan,
    tensors: "Mapping[str, Tensor] | Tensor",
    carrier: Carrier,
    *,
    topology: Topology | None = None,
    weights: Mapping[str, Tensor] | None = None,
    memory: MutableMapping[tuple[str, str], dict] | None = None,
    reduce: "str | Reduction" = SUM,
) -> Executable:
    """Check the arguments of :func:`run`, and prepare its carrier, without moving a byte."""
    weights, memory = {} if weights is None else weights, {} if memory is None else memory
    try:
        if not isinstance(plan, Plan):
            raise TensorError(text("tensor.plan-wanted", given=type(plan).__name__))
        playing = carrier.playing(plan)
        if isinstance(tensors, Tensor) and len(playing) == 1:
            tensors = {playing[0]: tensors}
        reducer = reduction(reduce)
        buffers = require_fitting(plan, tensors, carrier.place(playing), playing)
        # Try the reduction on a node that holds values: the content of the other buffers must not be read.
        require_usable(reducer, next((tensors[node] for node, _ in plan.holds if node in playing), buffers[0][:0]))
        require_updatable(plan, tensors, weights, memory, playing)
        if reducer is not SUM and any(updates(step) for step in plan.steps):
            raise TensorError(text("tensor.sum-wanted", name=reducer.name))
        if topology is not None:
            for node in plan.nodes:
                topology.require_node(node)
            for src, dst in {(send.src, send.dst) for step in plan.steps for send in sends(step)}:
                topology.route(src, dst)
        program = Program(
            plan, tensors, weights, memory, reducer, seen=frozenset(plan.nodes if carrier.shares_memory else playing)
        )
    except Exception as error:
        carrier.refuse(error)
        raise
    carrier.verify_same_run(program)
    return Executable(program, torch.no_grad()(carrier.load(program)))


def run(
    plan: Plan,
    tensors: "Mapping[str, Tensor] | Tensor",
    carrier: Carrier | None = None,
    *,
    topology: Topology | None = None,
    weights: Mapping[str, Tensor] | None = None,
    memory: MutableMapping[tuple[str, str], dict] | None = None,
    reduce: "str | Reduction" = SUM,
) -> Trace:
    """Execute ``plan`` on the tensors, in place, and return the measured trace.

    If the carrier has several processes, all of them must call this.

    Args:
        plan: the plan to execute; the same on all processes.
        tensors: node → its gradient, a flat tensor of N elements, for every node played by this process (with
            :class:`Here` every node of the plan); all of one size and dtype (any float or integer). The buffer of a
            node that holds nothing is not read. A process that plays one node may pass its tensor alone. Afterwards
            every node that wants a key has it there: the sum, or the new weights.
        carrier: :class:`Here` (default), all nodes in this process; :class:`Processes`; :class:`SharedMemory`.
        topology: the links on which the trace is drawn; without one, a link per pair used.
        weights: for plans with updates: node → flat tensor of its current weights, like its gradient, changed in place,
            for each node that updates.
        memory: for plans with updates: a dict for the state of the optimizer between runs. Without it the momentum is
            forgotten after the run.
        reduce: the operation that "add" stands for: ``"sum"``, ``"max"``, ``"min"``, ``"product"``, ``"or"`` (integers,
            bool), or your own :class:`Reduction`.

    Returns:
        the times of all acts, in seconds from the start: complete on rank 0, on other processes their own part.

    Raises:
        TensorError: if something does not fit, before anything has changed.
        TopologyError: if ``topology`` lacks a node or a route.
        RankLost: on all other processes, if one is lost during the run.
        ProcessesError: if another thread is using this carrier of several processes; its run ends, too. The threads
            could come in a different order on each process and sums would be mixed, so each thread needs its own
            carrier.

    Example:
        >>> from d2lps import ring
        >>> gradients = {"a": torch.tensor([1, 5]), "b": torch.tensor([3, 2])}
        >>> trace = run(ring(["a", "b"]), gradients, reduce="max")
        >>> gradients["a"], trace.steps
        (tensor([3, 5]), 2)
    """
    carrier = Here() if carrier is None else carrier
    options = {"topology": topology, "weights": weights, "memory": memory, "reduce": reduce}
    with carrier.taken():
        program, execute = compile(plan, tensors, carrier, **options)
        carrier.barrier()
        timed = carrier.gather_times(plan, execute())
    width = program.like.element_size()
    nbytes = {key: (part.stop - part.start) * width for key, part in program.slices.items()}
    acts: list[list[Send | Update]] = [[*sends(step), *updates(step)] for step in plan.steps]
    events = []
    for step, index, start, end in timed:
        act = acts[step - 1][index]
        events.append(event(act, step, start, end, nbytes[act.key]))
    links = pairs(plan) if topology is None else topology
    return Trace(carrier.describe(plan, program.tensors), plan, links, program.like.numel() * width, tuple(events))
