"""Models cut inside an operator (a matrix in columns or rows) or between operators (each on a device of its own)."""

from collections.abc import Iterable, Mapping

from d2lps.algorithms.rings import ring
from d2lps.plan.acts import Send
from d2lps.plan.parse import names
from d2lps.schedule.acts import Act, Collective, ScheduleError, Task, Value
from d2lps.schedule.schedule import Schedule


def tensor_mlp(devices: Iterable[str], rows: int = 1, width: int = 1, hidden: int = 1, itemsize: int = 4) -> Schedule:
    """Forward and backward pass of y = gelu(x A) B, with A cut in columns and B in rows: one all-reduce each.

    Every device has x whole, and makes its columns of u = gelu(x A); its product with its rows of B is a partial sum
    of y. Backwards, its part of dx = dy Bᵀ … Aᵀ is a partial sum, too. Gradients of weights need no message.

    Parameters
    ----------
    devices : iterable of str
        Their names.
    rows, width, hidden : int
        x has ``rows`` × ``width`` elements, A has ``width`` × ``hidden``.
    itemsize : int
        Bytes per element.

    Returns
    -------
    Schedule
        Two tasks per device, F and B, with 4 and 8 FLOPs per weight and row, and the sums of y and dx between them.

    Raises
    ------
    ScheduleError
        If ``hidden`` cannot be cut into as many equal parts.
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
        made = (f"u:{node}", ("y", node))
        acts.append(Task(node, "F", "mlp", None, ("x", f"A:{node}", f"B:{node}"), made, (), work))
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
    operators: Mapping[str, int], devices: Mapping[str, "str | Iterable[str]"], memory: Mapping[str, int], data: int = 0
) -> Schedule:
    """Forward and backward pass of operators in a row, each on one device or cut into equal parts on several.

    The input of a cut operator is copied to all its devices (broadcast), its output is put together on the first
    device of the next operator; backwards, the gradients of its input are partial sums, and are added up.

    Parameters
    ----------
    operators : mapping of str to int
        Operator → bytes of its weights, in order.
    devices : mapping of str to str or list of str
        Operator → the device, or the devices, that it is placed on.
    memory : mapping of str to int
        Device → bytes that fit on it. All devices stand here.
    data : int
        Bytes of the input and of what passes between operators.

    Returns
    -------
    Schedule
        Its ``peak`` says what each device needs.

    Raises
    ------
    ScheduleError
        If an operator has no device, or does not fit where it is placed; the sentence names both, and the bytes.

    Examples
    --------
    >>> GB = 10**9
    >>> gpus = {"gpu0": 10 * GB, "gpu1": 10 * GB}
    >>> place({"op1": 16 * GB, "op2": GB}, {"op1": ["gpu0", "gpu1"], "op2": "gpu1"}, gpus).peak
    {'gpu0': 8000000000, 'gpu1': 9000000000}
    """
    where = {}
    for name in operators:
        if name not in devices:
            raise ScheduleError("no-device", operator=name)
        where[name] = (devices[name],) if isinstance(devices[name], str) else names(devices[name])
        if unknown := [node for node in where[name] if node not in memory]:
            raise ScheduleError("unknown-device", operator=name, node=unknown[0], nodes=" ".join(memory))
    order = [(name, where[name]) for name in operators]
    weights: dict[str, int] = dict.fromkeys(memory, 0)
    for name, nodes in order:
        for node in nodes:
            weights[node] += -(-operators[name] // len(nodes))
            if weights[node] > memory[node]:
                raise ScheduleError("does-not-fit", operator=name, node=node, needed=weights[node], limit=memory[node])
    values, holds, wants = {"x0": Value(data)}, [(order[0][1][0], "x0")], []
    for i, (name, nodes) in enumerate(order):
        size = operators[name] // len(nodes)
        values |= {f"x{i + 1}": Value(data, nodes), f"d{i}": Value(data, nodes)}
        for node in nodes:
            values |= {f"w:{name}:{node}": Value(size), f"g:{name}:{node}": Value(0)}
            holds.append((node, f"w:{name}:{node}"))
            wants.append((node, f"g:{name}:{node}"))
    last = len(order)
    values[f"d{last}"] = Value(data)
    acts: list[Act] = []
    for i, (name, nodes) in enumerate(order):
        acts += [Send(nodes[0], node, f"x{i}", "copy") for node in nodes[1:]]
        acts += [Task(node, "F", name, None, (f"x{i}", f"w:{name}:{node}"), ((f"x{i + 1}", node),)) for node in nodes]
        acts += _join(f"x{i + 1}", nodes, order[i + 1][1][0] if i + 1 < last else nodes[0])
    holder = order[-1][1][0]
    acts.append(Task(holder, "L", "loss", None, (f"x{last}",), (f"d{last}",), (f"x{last}",)))
    for i, (name, nodes) in reversed([*enumerate(order)]):
        acts += [Send(holder, node, f"d{i + 1}", "copy") for node in nodes if node != holder]
        for node in nodes:
            reads, made = (f"x{i}", f"d{i + 1}"), (f"g:{name}:{node}", (f"d{i}", node))
            acts.append(Task(node, "B", name, None, (*reads, f"w:{name}:{node}"), made, reads))
        ahead = order[i - 1][1][0] if i else nodes[0]
        acts += _join(f"d{i}", nodes, ahead)
        holder = ahead
    return Schedule(memory, values, acts, holds, wants, memory)


def _join(value: str, nodes: tuple[str, ...], target: str) -> list[Act]:
    """Return the sends that put the parts, or the partial sums, of a value together on one device."""
    return [Send(node, target, value, "move") for node in nodes if node != target]
