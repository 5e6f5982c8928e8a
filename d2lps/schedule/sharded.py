"""Data parallelism whose devices share out the weights, gradients and states that each would keep: ZeRO as schedules.

>>> devices, layers = ["gpu0", "gpu1", "gpu2", "gpu3"], [1000] * 12
>>> [zero(devices, layers, stage).peak["gpu0"] for stage in (0, 1, 2, 3)]
[192000, 120000, 88000, 55000]
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    devices, layers = names(devices), list(layers)
    if not layers or not all(is_count(count) for count in layers):
        raise ScheduleError("no-layers", layers=layers)
    if stage not in (0, 1, 2, 3) or not is_count(micro) or micro < 1:
        raise ScheduleError("stage", stage=repr(stage), micro=repr(micro))
    sizes = [data] * len(layers) if isinstance(data, int) else list(data)
    if len(sizes) != len(layers):
        raise ScheduleError("data", given=len(sizes), layers=len(layers))
    stage = stage if len(devices) > 1 else 0  # one device has everything anyway
    step = _Step(devices, layers, micro, rows)
    if stage == 0:
        acts = _all_copied(step)
    elif stage == 1:
        acts = _states_shared(step)
    elif stage == 2:
        acts = _gradients_shared(step, wait)
    else:
        acts = _weights_shared(step, wait, keep)
    kept = [(node, step.part("w", k, node) if stage == 3 else f"w{k}") for node in devices for k in step.layers]
    kept += [(node, step.part("s", k, node) if stage else f"s{k}") for node in devices for k in step.layers]
    inputs = [(node, f"x0.{i}") for node in devices for i in range(micro)]
    losses = [(node, f"loss.{i}") for node in devices for i in range(micro)]
    values = _values(step, stage, sizes, itemsize, state)
    return Schedule(devices, values, acts, kept + inputs, kept + losses, memory)


class _Step:
    """One step of training, from which a stage of ZeRO takes the acts on one layer: each task on every device.

    ``w2``, ``g2`` and ``s2`` are the weights, gradients and states of layer 2, ``x2.0`` its input and ``d2.0`` the
    gradient of this input in micro-batch 0.
    """

    def __init__(self, devices: tuple[str, ...], counts: Sequence[int], micro: int, rows: int):
        self.devices, self.counts, self.rows = devices, counts, rows
        self.layers, self.batches, self.last = range(len(counts)), range(micro), len(counts) - 1
        self.all_gather, self.reduce_scatter = all_gather(devices), reduce_scatter(devices)
        self.owned = dict(self.all_gather.holds)  # device → the key of its part

    def part(self, kind: str, k: int, device: str) -> str:
        """Return the name of the part of ``w``, ``g`` or ``s`` of layer k that a device updates."""
        return f"{kind}{k}/{self.owned[device]}"

    def forward(self, i: int, k: int, free: bool = False) -> Iterator[Act]:
        """Yield the forward pass of layer k in micro-batch i; ``free``: its weights are freed after."""
        output = f"x{k + 1}.{i}" if k < self.last else f"loss.{i}"
        frees = (f"w{k}",) if free else ()
        for device in self.devices:
            yield Task(device, "F", f"{k}", i, (f"x{k}.{i}", f"w{k}"), (output,), frees, 2 * self.rows * self.counts[k])

    def backward(self, i: int, k: int, free: bool = False) -> Iterator[Act]:
        """Yield the backward pass of layer k in micro-batch i; ``free``: its weights are freed after."""
        above = f"d{k + 1}.{i}" if k < self.last else f"loss.{i}"
        frees = (f"x{k}.{i}", *([above] if k < self.last else []), *([f"w{k}"] if free else []))
        for device in self.devices:
            makes = ((f"g{k}", f"{device}.{i}"), *([f"d{k}.{i}"] if k else []))
            reads = (f"x{k}.{i}", above, f"w{k}")
            yield Task(device, "B", f"{k}", i, reads, makes, frees, 4 * self.rows * self.counts[k])

    def update(self, k: int, reads: str, makes: str = "", frees: str = "") -> Iterator[Act]:
        """Yield the update of layer k. ``w`` stands for its weights, ``w/`` for the part of the device, and so on."""

        def on(device: str, kinds: str) -> tuple[str, ...]:
            return tuple(self.part(kind[0], k, device) if "/" in kind else f"{kind}{k}" for kind in kinds.split())

        for device in self.devices:
            yield Task(device, "U", f"{k}", None, on(device, reads), on(device, makes), on(device, frees))


def _all_copied(step: _Step) -> Iterator[Act]:
    """Yield stage 0: every device has all weights, gradients and states."""
    all_reduce = ring(step.devices)
    for i in step.batches:
        for k in step.layers:
            yield from step.forward(i, k)
        for k in reversed(step.layers):
            yield from step.backward(i, k)
            if i == step.batches[-1] and len(step.devices) > 1:
                yield Collective(all_reduce, f"g{k}")
    for k in step.layers:
        yield from step.update(k, "w g s", frees="g")


def _states_shared(step: _Step) -> Iterator[Act]:
    """Yield stage 1: every device has all weights and gradients, and a part of the states."""
    for i in step.batches:
        for k in step.layers:
            yield from step.forward(i, k)
        for k in reversed(step.layers):
            yield from step.backward(i, k)
            if i == step.batches[-1]:
                yield Collective(step.reduce_scatter, f"g{k}")
    for k in step.layers:  # the new part is in the place of the old weights, which are those of no model now
        yield from step.update(k, "w g/ s/", makes="w/", frees="g/ w g")
        yield Collective(step.all_gather, f"w{k}", frees=True)


def _gradients_shared(step: _Step, wait: bool) -> Iterator[Act]:
    """Yield stage 2: every device has all weights, and a part of the gradients and states."""
    for i in step.batches:
        for k in step.layers:
            yield from step.forward(i, k)
        for k in reversed(step.layers):
            yield from step.backward(i, k)
            if i == step.batches[-1] or not wait:
                yield Collective(step.reduce_scatter, f"g{k}", frees=True)
    for k in step.layers:  # the new part is in the place of the old weights, which are those of no model now
        yield from step.update(k, "w g/ s/", makes="w/", frees="g/ w")
        yield Collective(step.all_gather, f"w{k}", frees=True)


def _weights_shared(step: _Step, wait: bool, keep: bool) -> Iterator[Act]:
    """Yield stage 3: every device has a part of everything, and gathers the weights of a layer before it needs them."""
    for i in step.batches:
        yield Collective(step.all_gather, "w0")
        for k in step.layers:
            kept = keep and k == step.last  # the backward pass begins with this layer
            yield from step.forward(i, k, free=not kept)
            if not kept:
                yield Collective(step.all_gather, f"w{min(k + 1, step.last)}")
        for k in reversed(step.layers):
            yield from step.backward(i, k, free=True)
            if k > 0:
                yield Collective(step.all_gather, f"w{k - 1}")
            if i == step.batches[-1] or not wait:
                yield Collective(step.reduce_scatter, f"g{k}", frees=True)
    for k in step.layers:
        yield from step.update(k, "w/ g/ s/", frees="g/")


def _values(step: _Step, stage: int, sizes: Sequence[int], itemsize: int, state: int) -> dict[str, Value]:
    """Return every value with its bytes; ``sizes`` are those of the layers' inputs."""
    atoms = tuple(f"{device}.{i}" for device in step.devices for i in step.batches)
    values = {f"loss.{i}": Value() for i in step.batches}
    for k, (count, size) in enumerate(zip(step.counts, sizes, strict=True)):
        values |= {f"{kind}{k}.{i}": Value(size) for kind in "xd" for i in step.batches}
        values |= {f"w{k}": Value(count * itemsize), f"g{k}": Value(count * itemsize, atoms)}
        if stage == 0:
            values[f"s{k}"] = Value(count * state)
            continue
        for key, cut in slices(step.all_gather.share, count).items():
            own = cut.stop - cut.start
            values[f"w{k}/{key}"] = Value(own * itemsize if stage == 3 else 0)
            values[f"g{k}/{key}"] = Value(own * itemsize if stage > 1 else 0, atoms)
            values[f"s{k}/{key}"] = Value(own * state)
    return values


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
