"""Models cut inside an operator (a matrix in columns or rows) or between operators (each on a device of its own)."""

from collections.abc import Iterable, Mapping, Sequence

from d2lps.algorithms.rings import ring
from d2lps.plan.acts import Send
from d2lps.plan.parse import names
from d2lps.schedule.acts import Act, Collective, ScheduleError, Task, Value
from d2lps.schedule.schedule import Schedule


def tensor_mlp(devices: Iterable[str], rows: int = 1, width: int = 1, hidden: int = 1, itemsize: int = 4) -> Schedule:
    """Forward and backward pass of y = gelu(x A) B, with A cut in columns and B in rows: one all-reduce each.

    Every device has x whole, and makes its columns of u = x A; the product of gelu(u) with its rows of B is a partial
    sum of y. Backwards, du = gelu′(u) ∘ (dy Bᵀ) stays on the device as well, but du Aᵀ is a partial sum of dx. The
    gradients of the weights need no message.

    Args:
        devices: Their names.
        rows, width, hidden: x has ``rows`` × ``width`` elements, A has ``width`` × ``hidden``.
        itemsize: Bytes per element.

    Returns:
        Two tasks per device, F and B, with 4 and 8 FLOPs per weight and row, and the sums of y and dx between them.

    Raises:
        ScheduleError: If ``hidden`` cannot be cut into as many equal parts.
    """
    devices = names(devices)
    n = len(devices)
    if hidden % n:
        raise ScheduleError("hidden", hidden=hidden, devices=n)
    part, data = width * hidden // n * itemsize, rows * width * itemsize
    values = {"x": Value(data), "y": Value(data, devices), "dy": Value(data), "dx": Value(data, devices)}
    acts: list[Act] = []
    sums = ring(devices) if n > 1 else None
    work = 4 * rows * width * hidden // n  # two products
    for node in devices:
        values |= {f"{name}:{node}": Value(part) for name in ("A", "B", "dA", "dB")}
        values[f"u:{node}"] = Value(rows * hidden // n * itemsize)
        reads: tuple[str, ...] = ("x", f"A:{node}", f"B:{node}")
        acts.append(Task(node, "F", "mlp", None, reads, (f"u:{node}", ("y", node)), (), work))
    acts += [Collective(sums, "y")] if sums else []
    for node in devices:
        reads = ("x", "y", "dy", f"u:{node}", f"A:{node}", f"B:{node}")
        made = (f"dA:{node}", f"dB:{node}", ("dx", node))
        acts.append(Task(node, "B", "mlp", None, reads, made, (f"u:{node}",), 2 * work))
    acts += [Collective(sums, "dx")] if sums else []
    holds = [(node, name) for node in devices for name in ("x", "dy", f"A:{node}", f"B:{node}")]
    wants = [(node, name) for node in devices for name in ("y", "dx", f"dA:{node}", f"dB:{node}")]
    return Schedule(devices, values, acts, holds, wants)


def place(
    operators: Mapping[str, int],
    devices: Mapping[str, "str | Iterable[str]"],
    memory: Mapping[str, int],
    data: "int | Sequence[int]" = 0,
    rows: int = 0,
    itemsize: int = 4,
) -> Schedule:
    """Forward and backward pass of operators in a row, each on one device or cut in columns on several.

    Each device of a cut operator reads the whole input (broadcast), and makes its part of the output. The devices of
    the next operator get all parts (combine); backwards, each sends every part of the gradient to the device that made
    this part of the input. There the messages of several devices are added up. The data need no gradient.

    Args:
        operators: Operator → the bytes that it needs, in order: half of them for its weights, half for their gradients.
        devices: Operator → the device, or the devices, that it is placed on.
        memory: Device → bytes that fit on it. All devices stand here.
        data: Bytes of the input, and of the output of each operator; one number if all are alike.
        rows: Examples of the batch, for the work: 2 FLOPs per weight and row forward, 4 backward.
        itemsize: Bytes per weight.

    Returns:
        Tasks F and B of every operator, and L, which makes the loss from the last output and the labels, on the first
            device of the last operator. Its ``peak`` says what each device needs.

    Raises:
        ScheduleError: If an operator has no device, or does not fit where it is placed; the sentence names both, and
            the bytes.

    Example:
        >>> GB = 10**9
        >>> gpus = {"gpu0": 10 * GB, "gpu1": 10 * GB}
        >>> place({"op1": 16 * GB, "op2": GB}, {"op1": ["gpu0", "gpu1"], "op2": "gpu1"}, gpus).peak
        {'gpu0': 8000000000, 'gpu1': 9000000000}
    """
    where: list[tuple[str, tuple[str, ...]]] = []
    used = dict.fromkeys(memory, 0)
    for name, nbytes in operators.items():
        if name not in devices:
            raise ScheduleError("no-device", operator=name)
        named = devices[name]
        nodes = (named,) if isinstance(named, str) else names(named)
        where.append((name, nodes))
        for node, size in zip(nodes, _parts(nbytes, len(nodes)), strict=True):
            if node not in memory:
                raise ScheduleError("unknown-device", operator=name, node=node, nodes=" ".join(memory))
            used[node] += size
            if used[node] > memory[node]:
                raise ScheduleError("does-not-fit", operator=name, node=node, needed=used[node], limit=memory[node])
    sizes = [data] * (len(where) + 1) if isinstance(data, int) else list(data)
    first, last = where[0][1][0], where[-1][1][0]
    values = {"x0": Value(sizes[0]), "labels": Value(0), "loss": Value(0)}
    holds, wants = [(first, "x0"), (last, "labels")], [(last, "loss")]
    inputs = [{"x0": first}]  # of each operator, then of the loss: the parts and the devices that make them
    for i, (name, nodes) in enumerate(where, 1):
        after = where[i][1] if i < len(where) else (last,)
        inputs.append({f"x{i}" if len(nodes) == 1 else f"x{i}:{node}": node for node in nodes})
        for part, size in zip(inputs[i], _parts(sizes[i], len(nodes)), strict=True):
            values |= {part: Value(size), "d" + part[1:]: Value(size, after)}
        for node, size in zip(nodes, _parts(operators[name], len(nodes)), strict=True):
            values |= {f"w:{name}:{node}": Value(size // 2), f"g:{name}:{node}": Value(size - size // 2)}
            holds.append((node, f"w:{name}:{node}"))
            wants.append((node, f"g:{name}:{node}"))
    acts: list[Act] = _forward(inputs[0], where[0][1])
    for i, (name, nodes) in enumerate(where):
        output = dict(zip(nodes, inputs[i + 1], strict=True))
        work = rows * operators[name] // len(nodes) // itemsize
        acts += [
            Task(node, "F", name, None, (*inputs[i], f"w:{name}:{node}"), (output[node],), (), work) for node in nodes
        ]
        acts += _forward(inputs[i + 1], where[i + 1][1] if i + 1 < len(where) else (last,))
    outputs = tuple(inputs[-1])
    loss = ("loss", *(("d" + part[1:], last) for part in outputs))
    acts.append(Task(last, "L", "", None, (*outputs, "labels"), loss, outputs))
    acts += _backward(inputs[-1], (last,))
    for i, (name, nodes) in reversed([*enumerate(where)]):
        below = ["d" + part[1:] for part in inputs[i]] if i else []
        above = dict(zip(nodes, ["d" + part[1:] for part in inputs[i + 1]], strict=True))
        work = rows * operators[name] // len(nodes) // itemsize * 2
        for node in nodes:
            reads = (*inputs[i], above[node])
            made = (f"g:{name}:{node}", *((part, node) for part in below))
            acts.append(Task(node, "B", name, None, (*reads, f"w:{name}:{node}"), made, reads, work))
        acts += _backward(inputs[i], nodes) if i else []
    return Schedule(memory, values, acts, holds, wants, memory)


def hybrid(
    operators: Mapping[str, int],
    devices: Iterable[str],
    memory: Mapping[str, int] | None = None,
    data: "int | Sequence[int]" = 0,
    rows: int = 0,
    itemsize: int = 4,
) -> Schedule:
    """Forward and backward pass of replicas of a model whose operators are on devices of their own.

    Replica r has one part of the batch, and one device per operator. The gradients of an operator are added up over
    the devices that hold this operator: one from each replica.

    Args:
        operators, memory, rows, itemsize: As for :func:`place`; ``memory`` may be left out, and ``rows`` are those of
            one replica.
        devices: Those of replica 0 in the order of the operators, then those of replica 1, and so on.
        data: Bytes of the input of a replica, and of the output of each operator; one number if all are alike.

    Returns:
        For each replica the tasks of :func:`place`, with its number as micro-batch; then an all-reduce per operator.

    Raises:
        ScheduleError: If the devices are not a multiple of the operators, or the memory does not suffice.

    Example:
        >>> schedule = hybrid({"op1": 4, "op2": 4}, ["gpu1", "gpu2", "gpu3", "gpu4"])
        >>> [act.plan.nodes for act in schedule.acts if isinstance(act, Collective)]
        [('gpu1', 'gpu3'), ('gpu2', 'gpu4')]
    """
    devices, names_of, count = names(devices), [*operators], len(operators)
    if len(devices) % count:
        raise ScheduleError("replicas", devices=len(devices), operators=count)
    sizes = [data] * (count + 1) if isinstance(data, int) else list(data)
    replicas = [devices[start : start + count] for start in range(0, len(devices), count)]
    numbers = tuple(range(len(replicas)))
    values = {f"w:{name}": Value(nbytes // 2) for name, nbytes in operators.items()}
    values |= {f"g:{name}": Value(nbytes - nbytes // 2, numbers) for name, nbytes in operators.items()}
    holds: list[tuple[str, str]] = []
    wants: list[tuple[str, str]] = []
    acts: list[Act] = []
    for r, nodes in enumerate(replicas):
        values |= {f"x{i}.{r}": Value(size) for i, size in enumerate(sizes)}
        values |= {f"d{i}.{r}": Value(size) for i, size in enumerate(sizes) if i}
        values |= {f"labels.{r}": Value(0), f"loss.{r}": Value(0)}
        holds += [(nodes[0], f"x0.{r}"), (nodes[-1], f"labels.{r}")]
        wants.append((nodes[-1], f"loss.{r}"))
        for node, name in zip(nodes, names_of, strict=True):
            holds.append((node, f"w:{name}"))
            wants.append((node, f"g:{name}"))
        acts += _replica(r, nodes, names_of, [rows * nbytes // itemsize for nbytes in operators.values()])
    if len(replicas) > 1:
        acts += [Collective(ring(devices[i::count]), f"g:{name}") for i, name in enumerate(names_of)]
    return Schedule(devices, values, acts, holds, wants, memory)


def _replica(r: int, nodes: tuple[str, ...], operators: Sequence[str], work: Sequence[int]) -> list[Act]:
    """Return the acts of one replica: forward from device to device, the loss, and backward."""
    acts: list[Act] = []
    last = len(nodes)
    for i, (node, name) in enumerate(zip(nodes, operators, strict=True)):
        acts.append(Task(node, "F", name, r, (f"x{i}.{r}", f"w:{name}"), (f"x{i + 1}.{r}",), (), work[i]))
        if i + 1 < last:
            acts.append(Send(node, nodes[i + 1], f"x{i + 1}.{r}", "move"))
    output = f"x{last}.{r}"
    acts.append(Task(nodes[-1], "L", "", r, (output, f"labels.{r}"), (f"loss.{r}", f"d{last}.{r}"), (output,)))
    for i in reversed(range(last)):
        node, name = nodes[i], operators[i]
        reads = (f"x{i}.{r}", f"d{i + 1}.{r}")
        made = ((f"g:{name}", r), f"d{i}.{r}") if i else ((f"g:{name}", r),)
        acts.append(Task(node, "B", name, r, (*reads, f"w:{name}"), made, reads, 2 * work[i]))
        if i:
            acts.append(Send(node, nodes[i - 1], f"d{i}.{r}", "move"))
    return acts


def _parts(size: int, count: int) -> list[int]:
    """Cut a size into parts that differ by 1 at most, the larger ones first."""
    return [size // count + (i < size % count) for i in range(count)]


def _forward(parts: Mapping[str, str], readers: tuple[str, ...]) -> list[Act]:
    """Return the sends that bring all parts of a value to all of its readers; others give their part away."""
    sent: list[Act] = []
    for part, node in parts.items():
        others = [reader for reader in readers if reader != node]
        ops = ["copy"] * len(others) if node in readers else ["copy"] * (len(others) - 1) + ["move"]
        sent += [Send(node, reader, part, op) for reader, op in zip(others, ops, strict=True)]
    return sent


def _backward(parts: Mapping[str, str], readers: tuple[str, ...]) -> list[Act]:
    """Return the sends that add up the gradient of each part where the part was made."""
    return [
        Send(reader, node, "d" + part[1:], "move")
        for part, node in parts.items()
        for reader in readers
        if reader != node
    ]
