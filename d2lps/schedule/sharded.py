"""Data parallelism whose devices share out the weights, gradients and states that each would keep: ZeRO as schedules.

>>> devices, layers = ["gpu0", "gpu1", "gpu2", "gpu3"], [1000] * 12
>>> [zero(devices, layers, stage).peak["gpu0"] for stage in (0, 1, 2, 3)]
[192000, 120000, 88000, 55000]
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from d2lps.algorithms.rings import all_gather, reduce_scatter, ring
from d2lps.plan.parse import names
from d2lps.plan.share import slices
from d2lps.schedule.acts import Act, Collective, ScheduleError, Task, Value
from d2lps.schedule.schedule import Schedule
from d2lps.units import is_count


def zero(
    devices: Iterable[str],
    layers: Sequence[int],
    stage: int = 3,
    micro: int = 1,
    wait: bool = False,
    keep: bool = True,
    data: "int | Sequence[int]" = 0,
    rows: int = 0,
    itemsize: int = 4,
    state: int = 8,
    memory: Mapping[str, int] | None = None,
) -> Schedule:
    """One training step of a model in layers, data parallel over n devices, which keep parts instead of copies.

    Every device has its own examples. In stage 0 each has all weights w, gradients g and states s of the optimizer, and
    an all-reduce adds up the gradients. In the other stages each device updates one part of every layer: a
    reduce-scatter brings it the sum for this part. Stage 1 shares out the states, stage 2 the gradients, too, and
    stage 3 the weights as well: a layer is gathered just before it is needed, forward and backward, and freed after.

    The place of an act in the list says when it may start: the next layer is gathered while this one computes.

    Sent per device, times (n−1)/n, for Ψ bytes of weights: stages 0, 1: 2Ψ. Stage 2: (m+1)Ψ for m micro-batches.
    Stage 3: 3mΨ, less m times the last layer if it is kept. With ``wait``: 2Ψ, and (2m+1)Ψ.

    Args:
        devices: Their names.
        layers: The number of parameters of each layer, in order.
        stage: 0 to 3.
        micro: Micro-batches per device, one after the other.
        wait: Stages 2 and 3: True to add up the gradients of all micro-batches whole on each device, and send them
            once.
        keep: Stage 3: True to keep the last layer between its forward and its backward pass.
        data: Bytes of the input of each layer for a micro-batch; one number if all are alike.
        rows: Examples of a micro-batch, for the work: 2 FLOPs per weight and row forward, 4 backward.
        itemsize, state: Bytes of a weight, and of the optimizer's state per weight: 8 for Adam's two numbers in
            float32.
        memory: Device → bytes that fit on it.

    Returns:
        Tasks F, B and U (update) per layer, and collectives of ``w0``, ``g0``, … The part of a device is ``w0/g1`` or
            the like; it has 0 bytes where it lies inside the whole value.

    Raises:
        ScheduleError: If there is no layer, no such stage, or the memory does not suffice.

    Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.

    Example:
        >>> schedule = zero(["gpu0", "gpu1"], [6, 6], stage=3)
        >>> [str(act) for act in schedule.acts if isinstance(act, Collective)]
        ['gpu0,gpu1 ∑w0', 'gpu0,gpu1 ∑w1', 'gpu0,gpu1 ∑w0', 'gpu0,gpu1 ∑g1', 'gpu0,gpu1 ∑g0']
    """
    devices, layers, last = names(devices), list(layers), len(layers) - 1
    if not layers or not all(is_count(count) for count in layers):
        raise ScheduleError("no-layers", layers=layers)
    if stage not in (0, 1, 2, 3) or not is_count(micro) or micro < 1:
        raise ScheduleError("stage", stage=repr(stage), micro=repr(micro))
    sizes = [data] * len(layers) if isinstance(data, int) else list(data)
    if len(sizes) != len(layers):
        raise ScheduleError("data", given=len(sizes), layers=len(layers))
    alone = len(devices) == 1
    stage = 0 if alone else stage  # one device has everything anyway
    wait = wait or stage < 2
    add_up, gather = (ring if stage == 0 else reduce_scatter)(devices), all_gather(devices)
    key = dict(gather.holds)  # the part of each device

    def part(name: str, node: str) -> str:
        return f"{name}/{key[node]}" if stage else name

    acts: list[Act] = []
    for i in range(micro):
        acts += [Collective(gather, "w0")] if stage == 3 else []
        for k, count in enumerate(layers):
            again = stage == 3 and (k < last or not keep)  # the backward pass needs the layer only later
            output = f"x{k + 1}.{i}" if k < last else f"loss.{i}"
            for node in devices:
                reads, gone = (f"x{k}.{i}", f"w{k}"), ((f"w{k}",) if again else ())
                acts.append(Task(node, "F", f"{k}", i, reads, (output,), gone, 2 * rows * count))
            acts += [Collective(gather, f"w{min(k + 1, last)}")] if again else []
        for k, count in reversed([*enumerate(layers)]):
            above = f"d{k + 1}.{i}" if k < last else f"loss.{i}"
            freed = (f"x{k}.{i}", *([above] if k < last else []), *([f"w{k}"] if stage == 3 else []))
            for node in devices:
                made = ((f"g{k}", f"{node}.{i}"), *([f"d{k}.{i}"] if k else []))
                acts.append(Task(node, "B", f"{k}", i, (f"x{k}.{i}", above, f"w{k}"), made, freed, 4 * rows * count))
            acts += [Collective(gather, f"w{k - 1}")] if stage == 3 and k else []
            if not alone and (not wait or i == micro - 1):
                acts.append(Collective(add_up, f"g{k}", frees=stage > 1))
    for k in range(len(layers)):
        for node in devices:
            new, gradient, state_of = (part(f"{kind}{k}", node) for kind in "wgs")
            if stage in (1, 2):  # the new part is in the place of the old weights, which are those of no model now
                old = (gradient, f"w{k}", f"g{k}") if stage == 1 else (gradient, f"w{k}")
                acts.append(Task(node, "U", f"{k}", None, (f"w{k}", gradient, state_of), (new,), old))
            else:
                acts.append(Task(node, "U", f"{k}", None, (new, gradient, state_of), (), (gradient,)))
        acts += [Collective(gather, f"w{k}", frees=True)] if stage in (1, 2) else []
    names_of = [(f"w{k}", f"s{k}") for k in range(len(layers))]
    kept = [(node, part(w, node) if stage == 3 else w) for node in devices for w, _ in names_of]
    kept += [(node, part(s, node)) for node in devices for _, s in names_of]
    inputs = [(node, f"x0.{i}") for node in devices for i in range(micro)]
    losses = [(node, f"loss.{i}") for node in devices for i in range(micro)]
    atoms = tuple(f"{node}.{i}" for node in devices for i in range(micro))
    values = {f"loss.{i}": Value() for i in range(micro)}
    for k, (count, size) in enumerate(zip(layers, sizes, strict=True)):
        values |= {f"{kind}{k}.{i}": Value(size) for kind in "xd" for i in range(micro)}
        values |= {f"w{k}": Value(count * itemsize), f"g{k}": Value(count * itemsize, atoms)}
        values |= {} if stage else {f"s{k}": Value(count * state)}
        for name, cut in slices(gather.share, count).items() if stage else ():
            own = cut.stop - cut.start
            values[f"w{k}/{name}"] = Value(own * itemsize if stage == 3 else 0)
            values[f"g{k}/{name}"] = Value(own * itemsize if stage > 1 else 0, atoms)
            values[f"s{k}/{name}"] = Value(own * state)
    return Schedule(devices, values, acts, kept + inputs, kept + losses, memory)


def fully_sharded(devices: Iterable[str], layers: Sequence[int], **options: Any) -> Schedule:
    """Return :func:`zero` of stage 3, with its options: a device has parts of all layers, and two layers at a time.

    Args:
        devices: Their names.
        layers: The number of parameters of each layer, in order.
        **options: The others of :func:`zero`.

    Returns:
        See there.

    Raises:
        ScheduleError: See there.
    """
    return zero(devices, layers, 3, **options)
