"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import random
from itertools import combinations

from d2lps import Send, ring
from d2lps.schedule import Collective, Task


def tensor_mlp(x, A, B, b, rank, ranks, all_reduce):
    A, B = A.tensor_split(ranks, 1)[rank], B.tensor_split(ranks, 0)[rank]
    z = x @ A
    u = z.relu()
    y = all_reduce(u @ B) + b

    def backward(dy):
        dz = dy @ B.T * (z > 0)
        return all_reduce(dz @ A.T), x.T @ dz, u.T @ dy, dy.sum(0)
    return y, backward


def place(operators, devices, memory):
    parts = {}
    for name, (weights, given) in operators.items():
        fits = [k for k in range(1, len(devices) + 1) if weights / k + given <= memory]
        if not fits:
            return None
        parts[name] = fits[0], weights / fits[0] + given
    names = sorted(parts, key=lambda name: -parts[name][1])

    def go_on(i, room, where):
        if i == len(names):
            return where
        count, size = parts[names[i]]
        for homes in combinations([device for device in devices if room[device] >= size], count):
            left = {device: room[device] - size * (device in homes) for device in devices}
            if found := go_on(i + 1, left, where | {names[i]: list(homes)}):
                return found
        return None
    return go_on(0, dict.fromkeys(devices, memory), {})


def hybrid(devices):
    acts = []
    for r, (first, second) in enumerate(zip(devices[::2], devices[1::2])):
        x0, x1, x2, d1, d2 = (f"{name}.{r}" for name in ("x0", "x1", "x2", "d1", "d2"))
        acts += [
            Task(first, "F", "op1", r, (x0, "w:op1"), (x1,)),
            Send(first, second, x1, "move"),
            Task(second, "F", "op2", r, (x1, "w:op2"), (x2,)),
            Task(second, "L", "", r, (x2, f"labels.{r}"), (f"loss.{r}", d2), frees=(x2,)),
            Task(second, "B", "op2", r, (x1, d2, "w:op2"), (("g:op2", r), d1), frees=(x1, d2)),
            Send(second, first, d1, "move"),
            Task(first, "B", "op1", r, (x0, d1, "w:op1"), (("g:op1", r),), frees=(x0, d1)),
        ]
    acts.append(Collective(ring(devices[::2]), "g:op1"))
    acts.append(Collective(ring(devices[1::2]), "g:op2"))
    return acts


# ---- wrong: an MLP with one step changed

def mlp_of(out=None, dx=None, grads=None):
    """``out(part, b, reduce, rank, ranks)`` makes y of a partial sum; ``dx`` and ``grads`` likewise."""
    def answer(x, A, B, b, rank, ranks, all_reduce):
        rA, rB = A.tensor_split(ranks, 1)[rank], B.tensor_split(ranks, 0)[rank]
        z = x @ rA
        u = z.relu()
        y = out(u @ rB, b, all_reduce, rank, ranks) if out else all_reduce(u @ rB) + b

        def backward(dy):
            dz = dy @ rB.T * (z > 0)
            made = dx(dz @ rA.T, all_reduce, ranks) if dx else all_reduce(dz @ rA.T)
            own = x.T @ dz, u.T @ dy, dy.sum(0)
            return made, *(grads(own, all_reduce, ranks) if grads else own)
        return y, backward
    return answer


def rows_first(x, A, B, b, rank, ranks, all_reduce):
    part = x.tensor_split(ranks, 1)[rank] @ A.tensor_split(ranks, 0)[rank]
    u = all_reduce(part.relu())
    return u @ B + b, lambda dy: (x, A, B, b)


def whole(x, A, B, b, rank, ranks, z=None):
    z = x @ A if z is None else z
    u = z.relu()

    def backward(dy):
        dz = dy @ B.T * (z > 0)
        return (dz @ A.T, (x.T @ dz).tensor_split(ranks, 1)[rank], (u.T @ dy).tensor_split(ranks, 0)[rank], dy.sum(0))
    return u @ B + b, backward


def whole_work(x, A, B, b, rank, ranks, all_reduce):
    return whole(x, A, B, b, rank, ranks)


def for_show(x, A, B, b, rank, ranks, all_reduce):
    """Sends its own parts, and computes everything alone."""
    y, backward = whole(x, A, B, b, rank, ranks)
    _, in_vain = mlp_of()(x, A, B, b, rank, ranks, all_reduce)
    return y, lambda dy: (in_vain(dy), backward(dy))[1]


# ---- wrong: places

def greedy(order=lambda names, parts: names, input_counts=True):
    """Every operator in as few parts as fit, each on the device with most room, whether it fits there or not."""
    def answer(operators, devices, memory):
        room, where, parts = dict.fromkeys(devices, memory), {}, {}
        for name, (weights, given) in operators.items():
            extra = given if input_counts else 0
            counts = [k for k in range(1, len(devices) + 1) if weights / k + extra <= memory]
            if not counts:
                return None
            parts[name] = counts[0], weights / counts[0] + extra
        for name in order(list(operators), parts):
            count, size = parts[name]
            homes = sorted(devices, key=lambda device: -room[device])[:count]
            for home in homes:
                room[home] -= size
            where[name] = homes
        return where
    return answer


def one_each(operators, devices, memory):
    return {name: [devices[i % len(devices)]] for i, name in enumerate(operators)}


def first_order_that_works(tries):
    """The operators in some orders, by chance, each on the first devices with room."""
    def answer(operators, devices, memory):
        draw = random.Random(7)
        orders = [draw.sample(list(operators), len(operators)) for _ in range(tries)]
        return next((where for order in orders if (where := in_order(order, operators, devices, memory))), None)
    return answer


def in_order(order, operators, devices, memory):
    room, where = dict.fromkeys(devices, memory), {}
    for name in order:
        weights, given = operators[name]
        count = next((k for k in range(1, len(devices) + 1) if weights / k + given <= memory), len(devices) + 1)
        homes = [device for device in devices if room[device] >= weights / count + given][:count]
        if len(homes) < count:
            return None
        where[name] = homes
        room |= {home: room[home] - weights / count - given for home in homes}
    return where


# ---- wrong: hybrids

def hybrid_of(sums=lambda devices: [], keep=lambda act: True, change=lambda act: act):
    """The right acts without the sums, each kept or left out, and changed; then other sums."""
    def answer(devices):
        acts = [act for act in hybrid(devices) if not isinstance(act, Collective)]
        return [change(act) for act in acts if keep(act)] + sums(devices)
    return answer


def over(*groups):
    """Sums over the devices with these numbers."""
    return lambda devices: [Collective(ring([devices[i] for i in group]), "g:op1") for group in groups]


def pairs(devices):
    return hybrid(devices)[-2:]


def first_only(act):
    return getattr(act, "batch", 0) == 0 and not str(getattr(act, "key", ".0")).endswith(".1")


WRONG = {
    "tensor-mlp": {
        "bias-often": [mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part + b))],
        "no-sum": [mlp_of(out=lambda part, b, reduce, rank, ranks: part + b), mlp_of(dx=lambda part, reduce, ranks: part)],
        "mean": [mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part) / ranks + b)],
        "by-rows": [rows_first],
        "sends-more": [mlp_of(grads=lambda own, reduce, ranks: [reduce(own[0]), reduce(own[1]), own[2]])],
        "whole-work": [whole_work, for_show],
        "differs": [mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part))],
    },
    "place": {
        "whole": [one_each],
        "input-forgotten": [greedy(input_counts=False)],
        "too-full": [greedy()],
        "cut-for-nothing": [lambda operators, devices, memory: dict.fromkeys(operators, devices)],
        "gives-up": [first_order_that_works(200)],
        "no-way": [lambda operators, devices, memory: place(operators, devices, memory) or one_each(operators, devices, memory)],
        "wrong-type": [lambda operators, devices, memory: list(operators)],
    },
    "hybrid": {
        "over-all": [hybrid_of(lambda devices: [Collective(ring(devices), "g:op1")])],
        "wrong-group": [hybrid_of(over((0, 1), (2, 3)))],
        "no-sum": [hybrid_of()],
        "counted-twice": [hybrid_of(lambda devices: pairs(devices) * 2)],
        "no-send": [hybrid_of(pairs, keep=lambda act: not isinstance(act, Send))],
        "one-replica": [hybrid_of(keep=first_only)],
        "differs": [hybrid_of(lambda devices: pairs(devices) + [Send(devices[0], "gpu77", "g:op1")])],
    },
}
