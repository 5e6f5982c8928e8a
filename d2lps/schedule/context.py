"""Context parallelism: one attention whose tokens are cut among devices, in three ways, as schedules.

>>> three = [attention(["gpu0", "gpu1", "gpu2"], way, tokens=12, heads=3, size=2) for way in WAYS]
>>> [sum(schedule.size(send.key) for send in schedule.acts if getattr(send, "src", "") == "gpu0") for schedule in three]
[384, 384, 256]

Everything else in a layer works token by token. In attention the tokens of a device, its queries, need the keys and
values of all others. ``gather`` brings them all to every device; ``ring`` passes them from neighbor to neighbor while
each device computes with what it has; ``heads`` cuts by heads instead of tokens meanwhile. The functions that do the
tasks are in :mod:`d2lps.train.context`.
"""

from collections.abc import Iterable, Sequence

from d2lps.plan.acts import Send
from d2lps.plan.parse import names
from d2lps.schedule.acts import ScheduleError, Task, Value
from d2lps.schedule.schedule import Schedule
from d2lps.units import is_count

WAYS = ("gather", "ring", "heads")
Places = tuple[range, ...]  # positions of tokens


def token_places(tokens: int, devices: int, zigzag: bool = False) -> list[Places]:
    """Return the positions of the tokens of each device.

    Args:
        tokens, devices: The tokens of the sequence, and the number of devices.
        zigzag: True to cut the sequence into twice as many parts: device i has part i and part 2n − 1 − i, so that all
            devices have equal work under a causal mask.

    Returns:
        One range per device, or two.

    Raises:
        ScheduleError: If the tokens cannot be cut into equal parts.

    Example:
        >>> token_places(8, 2), token_places(8, 2, zigzag=True)
        ([(range(0, 4),), (range(4, 8),)], [(range(0, 2), range(6, 8)), (range(2, 4), range(4, 6))])
    """
    parts = 2 * devices if zigzag else devices
    if not is_count(tokens, least=1) or tokens % parts:
        raise ScheduleError("tokens", tokens=repr(tokens), parts=parts)
    cut = [range(start, start + tokens // parts) for start in range(0, tokens, tokens // parts)]
    return [(cut[i], cut[parts - 1 - i]) if zigzag else (cut[i],) for i in range(devices)]


def seen_pairs(queries: Places, keys: Places, causal: bool = True) -> int:
    """Return how many pairs of a query and a key attention computes; the ranges are equal or have no common token."""
    pairs = 0
    for q in queries:
        for k in keys:
            pairs += (
                0
                if causal and q.stop <= k.start
                else len(q) * (len(q) + 1) // 2
                if causal and q == k
                else len(q) * len(k)
            )
    return pairs


def attention(
    devices: Iterable[str],
    way: str,
    tokens: int,
    heads: int = 1,
    size: int = 1,
    groups: int = 0,
    causal: bool = True,
    zigzag: bool = False,
    backward: bool = False,
    itemsize: int = 4,
) -> Schedule:
    """One attention of a sequence over n devices, each of which has 1/n of the tokens, forward or forward and backward.

    Sent per device and pass, with K bytes of keys and values of all tokens and Q bytes of queries: (n−1)/n·K forward
    and twice as much backward for ``gather`` and ``ring``, (n−1)/n·(K + 2Q)/n forward and as much backward for
    ``heads``.

    Args:
        devices: Their names.
        way: ``"gather"``: each device sends its keys and values to all others, and computes when it has them all; it
            frees them, and the backward pass brings them again. ``"ring"``: in each step a device computes with one
            block of keys and values, and passes it on. ``"heads"``: each device gets all tokens of some heads, and
            returns the outputs.
        tokens, heads, size, groups: The tokens s of the sequence; the heads, and the numbers of a head; the number of
            heads of keys and values, if they are fewer.
        causal: Whether a token sees only itself and those before it. Nothing is computed for pairs that are not seen.
        zigzag: As for :func:`token_places`.
        backward: Whether the gradients of queries, keys and values are computed, too.
        itemsize: Bytes per number.

    Returns:
        Tasks F and B with their FLOPs: one per device, or, for the ring, one per device and block of keys.

    Raises:
        ScheduleError: For an unknown way, and if tokens or heads cannot be cut into equal parts.

    Reference:
        Liu et al., "Ring attention with blockwise transformers for near-infinite context", 2023. Jacobs et al.,
        "DeepSpeed
        Ulysses", 2023.

    Example:
        >>> print(attention(["gpu0", "gpu1"], "ring", tokens=8))
        slot   0    1
        gpu0   F0.0 F0.1
        gpu1   F1.1 F1.0
    """
    devices, groups = names(devices), groups or heads
    if way not in WAYS:
        raise ScheduleError("way", way=repr(way), ways=", ".join(WAYS))
    places = token_places(tokens, len(devices), zigzag)
    if heads % groups or way == "heads" and groups % len(devices):
        raise ScheduleError("heads", heads=heads, groups=groups, devices=len(devices))
    numbers = tokens // len(devices) * size * itemsize  # bytes of one head's vectors on a device
    work = [[heads * size * seen_pairs(queries, keys, causal) for keys in places] for queries in places]
    make = {"gather": _gather, "ring": _ring, "heads": _heads}[way]
    return make(devices, numbers, numbers // size, heads, groups, work, backward)


def _values(n: int, numbers: int, one: int, heads: int, groups: int) -> dict[str, Value]:
    """Return the values of a device that has all heads of some tokens; o has a maximum and a sum per query, too."""
    values = {}
    for i in range(n):
        values |= {f"{name}{i}": Value(heads * numbers) for name in ("q", "do")}
        values |= {f"kv{i}": Value(2 * groups * numbers), f"o{i}": Value(heads * (numbers + 2 * one), tuple(range(n)))}
        values |= {f"dq{i}": Value(heads * numbers, tuple(range(n)))}
        values |= {f"dkv{i}": Value(2 * groups * numbers, tuple(range(n)))}
    return values


def _ends(devices: Sequence[str], backward: bool) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return what such devices hold and want."""
    given, made = (("q", "kv", "do"), ("o", "dq", "dkv")) if backward else (("q", "kv"), ("o",))
    return tuple([(node, f"{name}{i}") for i, node in enumerate(devices) for name in each] for each in (given, made))


def _gather(devices, numbers, one, heads, groups, work, backward) -> Schedule:
    n, acts = len(devices), []
    values = _values(n, numbers, one, heads, groups)
    values |= {f"{name}{i}": Value(values[f"{name}{i}"].nbytes) for name in ("o", "dq") for i in range(n)}
    around = [(i, (i + t) % n) for t in range(1, n) for i in range(n)]
    all_kv = tuple(f"kv{j}" for j in range(n))
    for name in "FB" if backward else "F":
        acts += [Send(devices[i], devices[j], f"kv{i}", "copy") for i, j in around]
        for i, node in enumerate(devices):
            others = tuple(f"kv{j}" for j in range(n) if j != i)
            if name == "F":
                acts.append(Task(node, "F", "", None, (f"q{i}", *all_kv), (f"o{i}",), others, 4 * sum(work[i])))
            else:
                reads = (f"q{i}", f"do{i}", f"o{i}", *all_kv)
                makes = (f"dq{i}", *((f"dkv{j}", i) for j in range(n)))
                acts.append(Task(node, "B", "", None, reads, makes, others, 10 * sum(work[i])))
    if backward:
        acts += [Send(devices[i], devices[j], f"dkv{j}", "move") for i, j in around]
    return Schedule(devices, values, acts, *_ends(devices, backward))


def _ring(devices, numbers, one, heads, groups, work, backward) -> Schedule:
    n, acts = len(devices), []
    values = _values(n, numbers, one, heads, groups)
    for name in "FB" if backward else "F":
        for t in range(n):
            block = [(i - t) % n for i in range(n)]  # which device i computes with, and passes on
            if t < n - 1:
                acts += [Send(devices[i], devices[(i + 1) % n], f"kv{block[i]}", "copy") for i in range(n)]
            for i, node in enumerate(devices):
                j = block[i]
                passed = (f"kv{j}",) if t else ()
                if name == "F":
                    reads, makes = (f"q{i}", f"kv{j}"), ((f"o{i}", j),)
                else:
                    reads, makes = (f"q{i}", f"do{i}", f"o{i}", f"kv{j}"), ((f"dq{i}", j), (f"dkv{j}", i))
                work_of = {"F": 4, "B": 10}[name] * work[i][j]
                acts.append(Task(node, name, f"{i}", j, reads, makes, passed, work_of))
            if name == "B" and t:  # gradients go the way of their keys, until they are home
                acts += [Send(devices[i], devices[(i + 1) % n], f"dkv{block[i]}", "move") for i in range(n)]
    return Schedule(devices, values, acts, *_ends(devices, backward))


def _heads(devices, numbers, one, heads, groups, work, backward) -> Schedule:
    n, acts = len(devices), []
    pairs = [(i, j) for i in range(n) for j in range(n)]  # tokens of device i, heads of device j
    around = [(i, (i + t) % n) for t in range(1, n) for i in range(n)]
    part, out = (heads + 2 * groups) // n * numbers, heads // n * numbers
    values = {f"o{j}": Value(heads * (numbers + 2 * one)) for j in range(n)}
    for i, j in pairs:
        values |= {f"{name}{i}.{j}": Value(part) for name in ("a", "da")}
        values |= {f"{name}{i}.{j}": Value(out) for name in ("y", "do")}
    total = sum(map(sum, work)) // n
    acts += [Send(devices[i], devices[j], f"a{i}.{j}", "move") for i, j in around]
    for j, node in enumerate(devices):
        inputs, outputs = (tuple(f"{name}{i}.{j}" for i in range(n)) for name in "ay")
        makes, frees = ((f"o{j}", *outputs), ()) if backward else (outputs, inputs)
        acts.append(Task(node, "F", "", None, inputs, makes, frees, 4 * total))
    acts += [Send(devices[j], devices[i], f"y{i}.{j}", "move") for j, i in around]
    if backward:
        acts += [Send(devices[i], devices[j], f"do{i}.{j}", "move") for i, j in around]
        for j, node in enumerate(devices):
            above, inputs, made = (tuple(f"{name}{i}.{j}" for i in range(n)) for name in ("do", "a", "da"))
            gone = (f"o{j}", *above, *inputs)
            acts.append(Task(node, "B", "", None, (f"o{j}", *above, *inputs), made, gone, 10 * total))
        acts += [Send(devices[j], devices[i], f"da{i}.{j}", "move") for j, i in around]
    given, made = (("a", "do"), ("y", "da")) if backward else (("a",), ("y",))
    holds, wants = ([(devices[i], f"{name}{i}.{j}") for i, j in pairs for name in each] for each in (given, made))
    return Schedule(devices, values, acts, holds, wants)
