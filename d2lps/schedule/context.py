"""Context parallelism: one attention whose tokens are cut among devices, in three ways, as schedules.

>>> three = [attention(["gpu0", "gpu1", "gpu2"], way, tokens=12, heads=3, size=2) for way in WAYS]
>>> [sum(schedule.size(send.key) for send in schedule.acts if getattr(send, "src", "") == "gpu0") for schedule in three]
[384, 384, 256]

Everything else in a layer works token by token. In attention the tokens of a device, its queries, need the keys and
values of all others. ``gather`` brings them all to every device; ``ring`` passes them from neighbor to neighbor while
each device computes with what it has; ``heads`` cuts by heads instead of tokens meanwhile. The functions that do the
tasks are in :mod:`d2lps.train.context`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from d2lps.plan.acts import Send
from d2lps.plan.parse import names
from d2lps.schedule.acts import Act, ScheduleError, Task, Value
from d2lps.schedule.schedule import Schedule
from d2lps.units import is_count

WAYS = ("gather", "ring", "heads")
FLOPS = {"F": (2, 2), "B": (6, 4)}  # per pair, for a number of a key and of a value: two products, and five
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
            if causal and q == k:
                pairs += len(q) * (len(q) + 1) // 2
            elif not causal or k.start < q.stop:
                pairs += len(q) * len(k)
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
    keys: int = 0,
    width: int = 0,
    sums: int = 0,
) -> Schedule:
    """Write one attention over n devices as a schedule: each has 1/n of the tokens, forward, or forward and backward.

    Sent per device and pass, with K bytes of keys and values of all tokens, G of their gradients and Q of queries:
    (n−1)/n·K forward and (n−1)/n·(K + G) backward for ``gather`` and ``ring``, (n−1)/n·(K + 2Q)/n forward and as much
    backward for ``heads``. Source: Liu et al., "Ring attention with blockwise transformers for near-infinite context",
    2023; Jacobs et al., "DeepSpeed Ulysses", 2023.

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
        keys, width: The number of keys, unless there are as many as tokens; the numbers of a value, unless ``size``.
        sums: Bytes per number of what is added up on the way – maximum, sum and weighted sum, and with ``gather`` and
            ``ring`` the gradients –, unless ``itemsize``.

    Returns:
        Tasks F and B with their FLOPs: one per device, or, for the ring, one per device and block of keys.

    Raises:
        ScheduleError: For an unknown way, if tokens or heads cannot be cut into equal parts, and for a causal mask with
            another number of keys.

    Example:
        >>> print(attention(["gpu0", "gpu1"], "ring", tokens=8))
        slot   0  1
        gpu0   F0 F1
        gpu1   F1 F0
    """
    devices, groups = names(devices), groups or heads
    if way not in WAYS:
        raise ScheduleError("way", way=repr(way), ways=", ".join(WAYS))
    places, others = (token_places(count, len(devices), zigzag) for count in (tokens, keys or tokens))
    if heads % groups or way == "heads" and groups % len(devices):
        raise ScheduleError("heads", heads=heads, groups=groups, devices=len(devices))
    if causal and keys not in (0, tokens):
        raise ScheduleError("mask", tokens=tokens, keys=keys)
    width, sums = width or size, sums or itemsize
    queries, pairs = heads * (tokens // len(devices)), groups * ((keys or tokens) // len(devices)) * (size + width)
    nbytes = {"q": queries * size * itemsize, "kv": pairs * itemsize, "do": queries * width * itemsize}
    nbytes |= {"o": queries * (width + 2) * sums, "dq": queries * size * sums, "dkv": pairs * sums}
    seen = [[heads * seen_pairs(own, other, causal) for other in others] for own in places]
    work = {name: [[(a * size + b * width) * each for each in row] for row in seen] for name, (a, b) in FLOPS.items()}
    make = {"gather": _gather, "ring": _ring, "heads": _heads}[way]
    return make(_Cut(devices, nbytes, work, backward))


class _Cut(NamedTuple):
    """An attention that is cut.

    A device has ``nbytes`` of each value, whose names are without a number here. ``work[task]`` has the FLOPs for the
    queries of one device and the keys of another.
    """

    devices: tuple[str, ...]
    nbytes: dict[str, int]
    work: dict[str, list[list[int]]]
    backward: bool

    @property
    def passes(self) -> str:
        return "FB" if self.backward else "F"

    @property
    def around(self) -> list[tuple[int, int]]:
        """All pairs of devices, nearest neighbors first."""
        n = len(self.devices)
        return [(i, (i + t) % n) for t in range(1, n) for i in range(n)]

    def sends(self, name: str, op: str) -> list[Act]:
        """Send a value of each device to all others; ``name`` makes its name from the numbers of both."""
        return [Send(self.devices[i], self.devices[j], name.format(i, j), op) for i, j in self.around]

    def by_tokens(self, joined: bool) -> dict[str, Value]:
        """Return the values of devices that have all heads of some tokens.

        The output o has a maximum and a sum per query, too. If it is ``joined`` by several tasks, each block of keys
        contributes to it and to the gradient of the queries.
        """
        atoms = tuple(range(len(self.devices)))
        blocks = atoms if joined else ("",)
        joins = {"o": blocks, "dq": blocks, "dkv": atoms}
        return {f"{name}{i}": Value(size, joins.get(name, ("",))) for i in atoms for name, size in self.nbytes.items()}

    def schedule(self, values: dict[str, Value], acts: list[Act]) -> Schedule:
        """Return a schedule of devices that have all heads of some tokens."""
        numbered = [*enumerate(self.devices)]
        holds = [(node, f"{name}{i}") for i, node in numbered for name in ("q", "kv", "do")[: 2 + self.backward]]
        wants = [(node, f"{name}{i}") for i, node in numbered for name in ("o", "dq", "dkv")[: 1 + 2 * self.backward]]
        return Schedule(self.devices, values, acts, holds, wants)


def _gather(cut: _Cut) -> Schedule:
    n, acts = len(cut.devices), list[Act]()
    blocks = tuple(f"kv{j}" for j in range(n))
    for name in cut.passes:
        acts += cut.sends("kv{0}", "copy")
        for i, node in enumerate(cut.devices):
            reads: tuple[str, ...] = (f"q{i}", *blocks)
            makes: tuple = (f"o{i}",)
            if name == "B":
                reads = (f"q{i}", f"do{i}", f"o{i}", *blocks)
                makes = (f"dq{i}", *((f"dkv{j}", i) for j in range(n)))
            others = blocks[:i] + blocks[i + 1 :]
            acts.append(Task(node, name, "", None, reads, makes, others, sum(cut.work[name][i])))
    acts += cut.sends("dkv{1}", "move") if cut.backward else []
    return cut.schedule(cut.by_tokens(joined=False), acts)


def _ring(cut: _Cut) -> Schedule:
    n, acts = len(cut.devices), list[Act]()
    for name in cut.passes:
        for t in range(n):
            block = [(i - t) % n for i in range(n)]  # which device i computes with, and passes on

            def pass_on(value: str, op: str, block: list[int] = block) -> list[Act]:
                return [Send(cut.devices[i], cut.devices[(i + 1) % n], f"{value}{block[i]}", op) for i in range(n)]

            acts += pass_on("kv", "copy") if t < n - 1 else []
            for i, j in enumerate(block):
                reads: tuple[str, ...] = (f"q{i}", f"kv{j}")
                makes: tuple = ((f"o{i}", j),)
                if name == "B":
                    reads = (f"q{i}", f"do{i}", f"o{i}", f"kv{j}")
                    makes = ((f"dq{i}", j), (f"dkv{j}", i))
                passed = (f"kv{j}",) if t else ()
                work = cut.work[name][i][j]
                acts.append(Task(cut.devices[i], name, f"{i}", j, reads, makes, passed, work))
            if name == "B" and t:  # gradients go the way of their keys, until they are home
                acts += pass_on("dkv", "move")
    return cut.schedule(cut.by_tokens(joined=True), acts)


def _heads(cut: _Cut) -> Schedule:
    n = len(cut.devices)
    total = {name: sum(map(sum, work)) // n for name, work in cut.work.items()}
    pairs = [(i, j) for i in range(n) for j in range(n)]  # tokens of device i, heads of device j
    part, out = (cut.nbytes["q"] + cut.nbytes["kv"]) // n, cut.nbytes["do"] // n
    values = {f"o{j}": Value(cut.nbytes["o"]) for j in range(n)}
    for i, j in pairs:
        values |= {f"{name}{i}.{j}": Value(part) for name in ("a", "da")}
        values |= {f"{name}{i}.{j}": Value(out) for name in ("y", "do")}

    def of(names: str, j: int) -> tuple[str, ...]:
        return tuple(f"{name}{i}.{j}" for name in names.split() for i in range(n))

    acts = cut.sends("a{0}.{1}", "move")
    for j, node in enumerate(cut.devices):
        makes, frees = ((f"o{j}", *of("y", j)), ()) if cut.backward else (of("y", j), of("a", j))
        acts.append(Task(node, "F", "", None, of("a", j), makes, frees, total["F"]))
    acts += cut.sends("y{1}.{0}", "move")
    if cut.backward:
        acts += cut.sends("do{0}.{1}", "move")
        for j, node in enumerate(cut.devices):
            reads = (f"o{j}", *of("do a", j))
            acts.append(Task(node, "B", "", None, reads, of("da", j), reads, total["B"]))
        acts += cut.sends("da{1}.{0}", "move")
    given, made = (("a", "do"), ("y", "da")) if cut.backward else (("a",), ("y",))
    holds, wants = ([(cut.devices[i], f"{name}{i}.{j}") for i, j in pairs for name in each] for each in (given, made))
    return Schedule(cut.devices, values, acts, holds, wants)
