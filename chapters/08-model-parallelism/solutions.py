"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import random
from itertools import combinations

import torch

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


def rows_summed(x, A, B, b, rank, ranks, all_reduce):
    z = all_reduce(x.tensor_split(ranks, 1)[rank] @ A.tensor_split(ranks, 0)[rank])
    return whole(x, A, B, b, rank, ranks, z)


def whole(x, A, B, b, rank, ranks, z=None):
    z = x @ A if z is None else z
    u = z.relu()

    def backward(dy):
        dz = dy @ B.T * (z > 0)
        return (dz @ A.T, (x.T @ dz).tensor_split(ranks, 1)[rank], (u.T @ dy).tensor_split(ranks, 0)[rank], dy.sum(0))
    return u @ B + b, backward


def whole_work(x, A, B, b, rank, ranks, all_reduce):
    return whole(x, A, B, b, rank, ranks)


def whole_in_vain(x, A, B, b, rank, ranks, all_reduce):
    y, backward = whole(x, A, B, b, rank, ranks)

    def behind(dy):
        dx, *others = backward(dy)
        return all_reduce(dx / ranks), *others
    return all_reduce(y / ranks), behind


def whole_dx(x, A, B, b, rank, ranks, all_reduce):
    y, backward = mlp_of(dx=lambda part, reduce, ranks: part)(x, A, B, b, rank, ranks, all_reduce)
    return y, lambda dy: ((dy @ B.T * (x @ A > 0)) @ A.T, *backward(dy)[1:])


def whole_backward(x, A, B, b, rank, ranks, all_reduce):
    y, backward = mlp_of()(x, A, B, b, rank, ranks, all_reduce)

    def behind(dy):
        dx, *_ = backward(dy)
        dz = dy @ B.T * (x @ A > 0)
        return dx, x.T @ dz, (x @ A).relu().T @ dy, dy.sum(0)
    return y, behind


def for_show(x, A, B, b, rank, ranks, all_reduce):
    """Sends its own parts, and computes everything alone."""
    y, backward = whole(x, A, B, b, rank, ranks)
    _, in_vain = mlp_of()(x, A, B, b, rank, ranks, all_reduce)
    return y, lambda dy: (in_vain(dy), backward(dy))[1]


def other_dx(share):
    """The whole dx is known to each rank, which gives a share of it to the second sum."""
    def answer(x, A, B, b, rank, ranks, all_reduce):
        y, backward = mlp_of(dx=lambda part, reduce, ranks: part)(x, A, B, b, rank, ranks, all_reduce)
        return y, lambda dy: (all_reduce(share(rank) * ((dy @ B.T * (x @ A > 0)) @ A.T)), *backward(dy)[1:])
    return answer


def alone_with_zeros(x, A, B, b, rank, ranks, all_reduce):
    y, backward = other_dx(lambda rank: 0)(x, A, B, b, rank, ranks, all_reduce)
    return y, lambda dy: ((dy @ B.T * (x @ A > 0)) @ A.T, *backward(dy)[1:])


def strided(x, A, B, b, rank, ranks, all_reduce):
    y = all_reduce((x @ A[:, rank::ranks]).relu() @ B[rank::ranks]) + b
    return y, mlp_of()(x, A, B, b, rank, ranks, lambda value: value)[1]


def only_rank_0(x, A, B, b, rank, ranks, all_reduce):
    y, backward = mlp_of()(x, A, B, b, rank, ranks, all_reduce)

    def behind(dy):
        return backward(dy) if rank else (x, None, None, None)
    return y, behind


def forgets_relu(x, A, B, b, rank, ranks, all_reduce):
    rA, rB = A.tensor_split(ranks, 1)[rank], B.tensor_split(ranks, 0)[rank]
    return all_reduce((x @ rA).relu() @ rB) + b, lambda dy: (
        all_reduce(dy @ rB.T @ rA.T), x.T @ (dy @ rB.T), (x @ rA).relu().T @ dy, dy.sum(0))


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


def where_cut(change):
    """The right places, changed for operators that are cut."""
    def answer(operators, devices, memory):
        where = place(operators, devices, memory)
        return where and {name: homes if len(homes) == 1 else change(homes, devices) for name, homes in where.items()}
    return answer


def one_each(operators, devices, memory):
    return {name: [devices[i % len(devices)]] for i, name in enumerate(operators)}


def tries_in_order(operators, devices, memory):
    room, where = dict.fromkeys(devices, memory), {}
    for name, (weights, given) in operators.items():
        count = next((k for k in range(1, len(devices) + 1) if weights / k + given <= memory), None)
        homes = sorted(devices, key=lambda device: -room[device])[:count]
        if count is None or any(room[home] < weights / count + given for home in homes):
            return None
        for home in homes:
            room[home] -= weights / count + given
        where[name] = homes
    return where


def first_order_that_works(tries):
    """The operators in some orders, by size and then by chance, each on the first devices with room."""
    def answer(operators, devices, memory):
        draw = random.Random(7)
        orders = [list(operators), sorted(operators, key=operators.get), sorted(operators, key=operators.get, reverse=True)]
        orders += [draw.sample(list(operators), len(operators)) for _ in range(tries)]
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


def cuts_further(operators, devices, memory):
    """Cuts everything once more if the fewest parts find no room."""
    if all(weights / len(devices) + given <= memory for weights, given in operators.values()):
        return place(operators, devices, memory) or {name: list(devices) for name in operators}
    return None


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


def once_more(devices):
    return pairs(devices) + [Send(devices[0], device, "g:op1", "copy") for device in devices[2::2]]


def reads_less(operator, value):
    """The backward task of an operator does not read the value."""
    def change(act):
        if not (isinstance(act, Task) and act.name == "B" and act.of == operator):
            return act
        names = [tuple(each for each in part if not str(each).startswith(value)) for part in (act.reads, act.frees)]
        return act._replace(reads=names[0], frees=names[1])
    return change


def first_only(act):
    return getattr(act, "batch", 0) == 0 and not str(getattr(act, "key", ".0")).endswith(".1")


def all_zero(act):
    return act._replace(batch=0) if isinstance(act, Task) else act


WRONG = {
    "tensor-mlp": {
        "bias-often": [mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part + b))],
        "no-sum": [mlp_of(out=lambda part, b, reduce, rank, ranks: part + b),
                   mlp_of(out=lambda part, b, reduce, rank, ranks: part + (rank == 0) * b),
                   mlp_of(dx=lambda part, reduce, ranks: part)],
        "mean": [mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part) / ranks + b),
                 mlp_of(dx=lambda part, reduce, ranks: reduce(part) / ranks),
                 mlp_of(grads=lambda own, reduce, ranks: [each / ranks for each in own])],
        "by-rows": [rows_first],
        "sends-more": [rows_summed, mlp_of(grads=lambda own, reduce, ranks: [reduce(own[0]), reduce(own[1]), own[2]]),
                       mlp_of(grads=lambda own, reduce, ranks: [own[0], own[1], reduce(own[2])]),
                       mlp_of(grads=lambda own, reduce, ranks: [own[0], own[1], reduce(own[2]) / ranks])],
        "whole-work": [whole_work, whole_in_vain, whole_dx, for_show, strided, alone_with_zeros, other_dx(lambda rank: rank == 0)],
        "waits-forever": [only_rank_0],
        "wrong-values": [mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part)), forgets_relu],
        "wrong-shape": [mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part)[:1]),
                        mlp_of(grads=lambda own, reduce, ranks: [own[0].T, own[1], own[2]]),
                        mlp_of(out=lambda part, b, reduce, rank, ranks: reduce(part.flatten()).view_as(part) + b), whole_backward, lambda x, A, B, b, rank, ranks, all_reduce: x],
        "raised": [lambda x, A, B, b, rank, ranks, all_reduce: x[99]],
    },
    "place": {
        "whole": [one_each],
        "input-forgotten": [greedy(input_counts=False)],
        "too-full": [greedy(), greedy(lambda names, parts: names[::-1])],
        "cut-for-nothing": [cuts_further, lambda operators, devices, memory: dict.fromkeys(operators, devices), where_cut(lambda homes, devices: devices)],
        "same-device": [where_cut(lambda homes, devices: homes[:1] * len(homes))],
        "gives-up": [tries_in_order, first_order_that_works(0), first_order_that_works(200), lambda operators, devices, memory: None],
        "no-way": [lambda operators, devices, memory: place(operators, devices, memory) or one_each(operators, devices, memory)],
        "not-a-place": [where_cut(lambda homes, devices: None), where_cut(lambda homes, devices: [0, 1]),
                        lambda operators, devices, memory: list(operators),
                        lambda operators, devices, memory: {name: devices[:1] for name in list(operators)[1:]}],
        "raised": [lambda operators, devices, memory: devices[99]],
    },
    "hybrid": {
        "over-all": [hybrid_of(lambda devices: [Collective(ring(devices), "g:op1")]),
                     hybrid_of(lambda devices: [Collective(ring(devices), "g:op2")])],
        "wrong-group": [hybrid_of(over((0, 1), (2, 3))), hybrid_of(over((0, 3)))],
        "no-sum": [hybrid_of(), hybrid_of(lambda devices: pairs(devices)[:1]), hybrid_of(lambda devices: pairs(devices)[1:])],
        "counted-twice": [hybrid_of(lambda devices: pairs(devices) * 2)],
        "no-send": [hybrid_of(pairs, keep=lambda act: not (isinstance(act, Send) and act.key.startswith("d1")), change=reads_less("op1", "d1")),
                    hybrid_of(pairs, keep=lambda act: isinstance(act, Task)),
                    hybrid_of(pairs, keep=lambda act: isinstance(act, Task) or act.key.startswith("x"))],
        "one-replica": [hybrid_of(keep=first_only), hybrid_of(pairs, change=all_zero),
                        lambda devices: hybrid([*devices[::2], *devices[1::2]]), lambda devices: hybrid(devices[::-1])],
        "too-many-bytes": [hybrid_of(once_more)],
        "broken": [hybrid_of(lambda devices: pairs(devices) + [Send(devices[0], "gpu77", "g:op1")]),
                   hybrid_of(pairs, change=lambda act: act._replace(makes=(("g:op1", 9),)) if isinstance(act, Task) and act.label == "Bop1.0" else act)],
        "not-acts": [lambda devices: "acts", lambda devices: [devices]],
        "raised": [lambda devices: devices[99]],
    },
}
