"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

from fractions import Fraction

from d2lps import Plan, Send, aggregate_at, sharded


def own_gpu(gpus):
    owners = {f"g{j}": gpu for j, gpu in enumerate(gpus, 1)}
    shares = {key: Fraction(1, len(gpus)) for key in owners}
    collect = [Send(gpu, owner, key, "add") for key, owner in owners.items() for gpu in gpus if gpu != owner]
    give_back = [Send(owner, gpu, key, "copy") for gpu, owner, key, _ in collect]
    return Plan(gpus, shares, [collect, give_back])


def overlap(gpus, cpu, chunks):
    shares = {f"g{i}": Fraction(1, chunks) for i in range(1, chunks + 1)}
    steps = [[] for _ in range(chunks + 1)]
    for i, key in enumerate(shares):
        steps[i] += [Send(gpu, cpu, key, "add") for gpu in gpus]
        steps[i + 1] += [Send(cpu, gpu, key, "copy") for gpu in gpus]
    return Plan([*gpus, cpu], shares, steps, holds=gpus, wants=gpus)


def split(gpus, servers):
    total = Fraction(sum(servers.values()))
    shares = {name: Fraction(bandwidth) / total for name, bandwidth in servers.items()}
    collect = [Send(gpu, name, name, "add") for name in servers for gpu in gpus]
    give_back = [Send(name, gpu, name, "copy") for name in servers for gpu in gpus]
    return Plan([*gpus, *servers], shares, [collect, give_back], holds=gpus, wants=gpus)


# Typical wrong answers, each with one mistake; `served` and `owned` are their common parts.


def owned(gpus, owners, share=None, steps=None, back="copy"):
    """The plan in which ``owners`` (key → GPU) add up, with equal shares and two steps unless told otherwise."""
    share = share or {key: Fraction(1, len(owners)) for key in owners}
    collect = [Send(gpu, owner, key, "add") for key, owner in owners.items() for gpu in gpus if gpu != owner]
    give_back = [Send(owner, gpu, key, back) for gpu, owner, key, _ in collect]
    return Plan(gpus, share, steps(collect, give_back) if steps else [collect, give_back])


def each_its_own(gpus):
    return {f"g{j}": gpu for j, gpu in enumerate(gpus, 1)}


def served(gpus, servers, shares, steps=None):
    """The plan in which each of ``servers`` adds up the key of its own name."""
    collect = [Send(gpu, name, name, "add") for name in servers for gpu in gpus]
    give_back = [Send(name, gpu, name, "copy") for name in servers for gpu in gpus]
    steps = steps(collect, give_back) if steps else [collect, give_back]
    return Plan([*gpus, *servers], shares, steps, holds=gpus, wants=gpus)


def by(weights):
    return {name: Fraction(weight) / sum(map(Fraction, weights.values())) for name, weight in weights.items()}


def key_by_key(collect, give_back):
    """Steps in which only one key moves at a time: collected, sent back, then the next."""
    keys = dict.fromkeys(send.key for send in collect)
    return [[send for send in half if send.key == key] for key in keys for half in (collect, give_back)]


def all_to_all(gpus):
    keys = each_its_own(gpus)
    return Plan(gpus, {key: Fraction(1, len(gpus)) for key in keys},
                [[Send(a, b, key, "add") for a in gpus for b in gpus if a != b for key in keys]])


def ring(gpus):
    n, (*keys,) = len(gpus), each_its_own(gpus)
    hops = [[(gpus[i], gpus[(i + 1) % n], keys[(i - s) % n]) for i in range(n)] for s in range(2 * n - 2)]
    return Plan(gpus, {key: Fraction(1, n) for key in keys},
                [[Send(*hop, "add" if s < n - 1 else "copy") for hop in step] for s, step in enumerate(hops)])


def two_at_the_first(gpus):
    return owned(gpus, {f"g{j}": gpus[max(0, j - 2)] for j in range(1, len(gpus) + 1)})


def chunked(gpus, cpu, chunks, order, shares=None, **more):
    """The CPU adds up; ``order(n)`` tells for each step which keys are collected and which are sent back."""
    keys = [f"g{i}" for i in range(1, chunks + 1)]
    steps = [[*(Send(gpu, cpu, keys[i], "add") for i in up for gpu in gpus),
              *(Send(cpu, gpu, keys[i], "copy") for i in down for gpu in gpus)] for up, down in order(chunks)]
    given = {"holds": gpus, "wants": gpus} | more
    return Plan([*gpus, cpu], shares or {key: Fraction(1, chunks) for key in keys}, steps, **given)


def shifted(n, by=1):
    return [([i] if i < n else [], [i - by] if i >= by else []) for i in range(n + by)]


def turn_by_turn(n):
    return [turn for i in range(n) for turn in (([i], []), ([], [i]))]


def handed_on_by_the_first(gpus, cpu, chunks):
    plan = aggregate_at(gpus, cpu, chunks)
    steps = [[send for send in step if send.src != cpu or send.dst == gpus[0]] for step in plan.steps]
    hand_on = [Send(gpus[0], gpu, key, "copy") for gpu in gpus[1:] for key in plan.share]
    return Plan(plan.nodes, plan.share, [*steps, hand_on], holds=gpus, wants=gpus)


WRONG = {
    "own-gpu": {
        "all-on-one": [lambda gpus: aggregate_at(gpus, gpus[0])],
        "whole-gradient": [all_to_all],
        "uneven": [two_at_the_first],
        "one-after-another": [lambda gpus: owned(gpus, each_its_own(gpus), steps=key_by_key)],
        "ring": [ring],
        "not-sent-back": [lambda gpus: owned(gpus, each_its_own(gpus), steps=lambda collect, give_back: [collect])],
        "counted-twice": [lambda gpus: owned(gpus, each_its_own(gpus), back="add")],
        "overwritten": [lambda gpus: owned(gpus, each_its_own(gpus),
                                           steps=lambda up, down: [[s._replace(op="copy") for s in up], down])],
        "to-itself": [lambda gpus: Plan(gpus, {"g": 1}, [[Send(gpu, gpus[0], "g") for gpu in gpus]])],
        "inexact": [lambda gpus: owned(gpus, each_its_own(gpus), dict.fromkeys(each_its_own(gpus), 1 / len(gpus)))],
        "not-general": [lambda gpus: sharded(gpus, gpus[:4])],
    },
    "overlap": {
        "chunks-ignored": [lambda gpus, cpu, chunks: aggregate_at(gpus, cpu)],
        "not-overlapped": [lambda *given: chunked(*given, turn_by_turn)],
        "waits-too-long": [lambda *given: chunked(*given, lambda n: shifted(n, by=2))],
        "other-chunks": [lambda gpus, cpu, chunks: aggregate_at(gpus, cpu, 2 * chunks)],
        "unequal-chunks": [lambda *given: chunked(
            *given, shifted, shares=by({f"g{i}": i for i in range(1, given[2] + 1)}))],
        "too-early": [lambda *given: chunked(*given, lambda n: [([i], [i]) for i in range(n)])],
        "unknown-name": [lambda *given: chunked(*given, shifted, shares={"g": 1})],
        "between-workers": [handed_on_by_the_first],
        "task-changed": [lambda *given: chunked(*given, shifted, holds=None, wants=None)],
        "not-general": [lambda gpus, cpu, chunks: aggregate_at(gpus, "cpu", chunks)],
    },
    "split": {
        "equal-split": [lambda gpus, servers: served(gpus, servers, by(dict.fromkeys(servers, 1)))],
        "inverse-split": [lambda gpus, servers: served(
            gpus, servers, by({name: 1 / Fraction(rate) for name, rate in servers.items()}))],
        "all-on-one": [lambda gpus, servers: served(
            gpus, servers, {name: int(name == max(servers, key=servers.get)) for name in servers})],
        "wrong-split": [lambda gpus, servers: served(
            gpus, servers, by({name: Fraction(rate) ** 2 for name, rate in servers.items()}))],
        "inexact": [lambda gpus, servers: served(
            gpus, servers, {name: rate / sum(servers.values()) for name, rate in servers.items()})],
        "one-after-another": [lambda gpus, servers: served(gpus, servers, by(servers), key_by_key)],
        "overlapped": [lambda gpus, servers: sharded(gpus, by(servers), chunks=4)],
        "share-sum": [lambda gpus, servers: served(gpus, servers, {
            name: int(100 * rate / sum(servers.values())) for name, rate in servers.items()})],
        "not-general": [lambda gpus, servers: served(gpus, servers, {"cpu0": "2/3", "cpu1": "1/3"})],
    },
}


RULES = {
    "own-gpu": {
        "each GPU adds up one key": "all-on-one",
        "of the same size": "uneven",
        "exact fractions": "inexact",
        "two steps": "ring",
        "everyone gets the whole sum": "not-sent-back",
        "each gradient counts once": "counted-twice",
        "only what is added up elsewhere is sent": "whole-gradient",
        "any number of GPUs": "not-general",
        "by their names": lambda gpus: own_gpu([f"gpu{i}" for i, _ in enumerate(gpus)]),
    },
    "overlap": {
        "in chunks": "chunks-ignored",
        "as many as chunks says": "other-chunks",
        "equal ones": "unequal-chunks",
        "on the CPU": "between-workers",
        "by its name": "not-general",
        "by the names of the GPUs": lambda gpus, cpu, chunks: overlap([f"gpu{i}" for i, _ in enumerate(gpus)], cpu, chunks),
        "both directions at once": "not-overlapped",
        "while one chunk is collected, the one before is sent back": "waits-too-long",
        "the sum": "too-early",
        "only the GPUs have a gradient and want the sum": "task-changed",
        "the last step sends back": lambda gpus, cpu, chunks: Plan(
            [*gpus, cpu], overlap(gpus, cpu, chunks).share, overlap(gpus, cpu, chunks).steps[:-1], holds=gpus, wants=gpus),
    },
    "split": {
        "the shares that make the time shortest": "equal-split",
        "in proportion to the bandwidths": "wrong-split",
        "exact": "inexact",
        "they add up to 1": "share-sum",
        "two steps": "one-after-another",
        "not more": "overlapped",
        "several processors": "all-on-one",
        "any of them": "not-general",
        "by the names of the GPUs": lambda gpus, servers: split([f"gpu{i}" for i, _ in enumerate(gpus)], servers),
    },
}
