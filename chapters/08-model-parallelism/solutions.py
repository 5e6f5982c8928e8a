"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

from itertools import combinations

from d2lps import Send, ring
from d2lps.notebook.grading import edited
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


def rows_first(x, A, B, b, rank, ranks, all_reduce):
    part = x.tensor_split(ranks, 1)[rank] @ A.tensor_split(ranks, 0)[rank]
    return all_reduce(part.relu()) @ B + b, lambda dy: (x, A, B, b)


def one_each(operators, devices, memory):
    return {name: [devices[i % len(devices)]] for i, name in enumerate(operators)}


WRONG = {
    "tensor-mlp": {
        "bias-often": [edited(tensor_mlp, ("all_reduce(u @ B) + b", "all_reduce(u @ B + b)"))],
        "no-sum": [edited(tensor_mlp, ("all_reduce(u @ B)", "u @ B")), edited(tensor_mlp, ("all_reduce(dz @ A.T)", "dz @ A.T"))],
        "mean": [edited(tensor_mlp, ("all_reduce(u @ B)", "all_reduce(u @ B) / ranks"))],
        "by-rows": [rows_first],
        "sends-more": [edited(tensor_mlp, ("x.T @ dz, u.T @ dy", "all_reduce(x.T @ dz), all_reduce(u.T @ dy)"))],
        "whole-work": [edited(  # computes everything on every rank
            tensor_mlp, ("A, B = A.tensor_split(ranks, 1)[rank], B.tensor_split(ranks, 0)[rank]\n    z", "z"),
            ("all_reduce(u @ B)", "u @ B"), ("all_reduce(dz @ A.T)", "dz @ A.T"),
            ("x.T @ dz, u.T @ dy", "(x.T @ dz).tensor_split(ranks, 1)[rank], (u.T @ dy).tensor_split(ranks, 0)[rank]"))],
        "differs": [edited(tensor_mlp, ("all_reduce(u @ B) + b", "all_reduce(u @ B)"))],
    },
    "place": {
        "whole": [one_each],
        "input-forgotten": [edited(place, ("weights / k + given", "weights / k"), ("weights / fits[0] + given", "weights / fits[0]"))],
        "too-full": [edited(place, (" if room[device] >= size]", "]"))],
        "cut-for-nothing": [lambda operators, devices, memory: dict.fromkeys(operators, devices)],
        "gives-up": [edited(place, ("if found := go_on(", "return go_on("), (": list(homes)}):\n                return found", ": list(homes)})"))],
        "no-way": [lambda operators, devices, memory: place(operators, devices, memory) or one_each(operators, devices, memory)],
        "wrong-type": [lambda operators, devices, memory: list(operators)],
    },
    "hybrid": {
        "over-all": [edited(hybrid, ("ring(devices[::2])", "ring(devices)"))],
        "wrong-group": [edited(hybrid, ("ring(devices[::2])", "ring(devices[:2])"))],
        "no-sum": [edited(hybrid, ('acts.append(Collective(ring(devices[::2]), "g:op1"))', "pass"))],
        "counted-twice": [edited(hybrid, ("return acts", "return acts + acts[-2:]"))],
        "no-send": [edited(hybrid, ('            Send(first, second, x1, "move"),\n', ""))],
        "one-replica": [edited(hybrid, ("enumerate(zip(devices[::2], devices[1::2]))", "[(0, devices[:2])]"))],
        "differs": [edited(hybrid, ("return acts", "return acts + [Send(devices[0], 'gpu77', 'g:op1')]"))],
    },
}


RULES = {
    "tensor-mlp": {
        "y has the bias": "differs",
        "once": "bias-often",
        "only the own hidden units": "whole-work",
        "columns of A": "by-rows",
        "as tensor_split gives them": ("A.tensor_split(ranks, 1)[rank], B.tensor_split(ranks, 0)[rank]", "A[:, rank::ranks], B[rank::ranks]"),
        "parts of different sizes": ("A.tensor_split(ranks, 1)[rank], B.tensor_split(ranks, 0)[rank]",
                                     "A.split(A.shape[1] // ranks, 1)[rank], B.split(A.shape[1] // ranks, 0)[rank]"),
        "the gradient of relu": ("(z > 0)", "(z >= 0)"),
        "the gradient of x": ("all_reduce(dz @ A.T)", "all_reduce(2 * dz @ A.T)"),
        "the gradient of A": ("x.T @ dz", "2 * x.T @ dz"),
        "the gradient of B": ("u.T @ dy", "z.T @ dy"),
        "the gradient of b": ("dy.sum(0)", "dy.mean(0)"),
        "all_reduce is a sum": "mean",
        "it is called twice": "no-sum",
        "in the shape of y": ("all_reduce(u @ B)", "all_reduce((u @ B).flatten()).view(len(x), -1)"),
        "no gradients of weights are sent": "sends-more",
        "no hidden units": ("u = z.relu()", "u = all_reduce(z).relu()"),
    },
    "place": {
        "all operators": ("key=lambda name: -parts[name][1])", "key=lambda name: -parts[name][1])[1:]"),
        "by the names of the devices": ("list(homes)}", '[f"gpu{1 + devices.index(home)}" for home in homes]}'),
        "memory bytes fit": "too-full",
        "to the last byte": (("given <= memory", "given < memory"), ("room[device] >= size", "room[device] > size")),
        "each part needs the whole input": "input-forgotten",
        "what does not fit is cut": "whole",
        "only what must be cut is cut": "cut-for-nothing",
        "as if all devices were empty": lambda operators, devices, memory: place(operators, devices, memory) or dict.fromkeys(operators, devices),
        "parts are on different devices": ("list(homes)}", "[homes[0]] * count}"),
        "all parts find room": "gives-up",
        "None if there is no way": "no-way",
    },
    "hybrid": {
        "any number of replicas": "one-replica",
        "op1 on device 2r, op2 on 2r + 1": ("zip(devices[::2], devices[1::2])", "zip(devices[1::2], devices[::2])"),
        "all acts of each replica": "no-send",
        "with the names of replica": ('f"{name}.{r}"', 'f"{name}-{r}"'),
        "the sum of g:op1": "no-sum",
        "the sum of g:op2": ('    acts.append(Collective(ring(devices[1::2]), "g:op2"))\n', ""),
        "each sum over its own devices": "over-all",
        "over all of these": "wrong-group",
        "once": "counted-twice",
        "no byte more": ("return acts", 'return [Send(devices[0], devices[1], "x0.0", "copy"), *acts]'),
    },
}
