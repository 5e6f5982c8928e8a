"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
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


# What learners write instead. Each answer does one thing wrong; `served` and `owned` are what they have in common.


def owned(gpus, owners, share=None, steps=None, back="copy"):
    """The plan in which ``owners`` (key → GPU) add up, with equal shares and two steps unless told otherwise."""
    share = share or {key: Fraction(1, len(owners)) for key in owners}
    collect = [Send(gpu, owner, key, "add") for key, owner in owners.items() for gpu in gpus if gpu != owner]
    give_back = [Send(owner, gpu, key, back) for gpu, owner, key, _ in collect]
    return Plan(gpus, share, steps(collect, give_back) if steps else [collect, give_back])


def each_its_own(gpus):
    return {f"g{j}": gpu for j, gpu in enumerate(gpus, 1)}


def served(gpus, servers, shares, steps=None, **more):
    """The plan in which each of ``servers`` adds up the key of its own name."""
    collect = [Send(gpu, name, name, "add") for name in servers for gpu in gpus]
    give_back = [Send(name, gpu, name, "copy") for name in servers for gpu in gpus]
    given = {"holds": gpus, "wants": gpus} | more
    return Plan([*gpus, *servers], shares, steps(collect, give_back) if steps else [collect, give_back], **given)


def by(weights):
    return {name: Fraction(weight) / sum(map(Fraction, weights.values())) for name, weight in weights.items()}


def equal(servers):
    return by(dict.fromkeys(servers, 1))


def key_by_key(collect, give_back):
    """Steps in which only one key moves at a time: collected, sent back, then the next."""
    keys = dict.fromkeys(send.key for send in collect)
    return [[send for send in half if send.key == key] for key in keys for half in (collect, give_back)]


def all_to_all(gpus):
    keys = each_its_own(gpus)
    return Plan(gpus, {key: Fraction(1, len(gpus)) for key in keys},
                [[Send(a, b, key, "add") for a in gpus for b in gpus if a != b for key in keys]])


def all_to_all_in_one_piece(gpus):
    return Plan(gpus, {"g": 1}, [[Send(a, b, "g", "add") for a in gpus for b in gpus if a != b]])


def along_a_chain(gpus):
    hops = list(zip(gpus, gpus[1:]))
    return Plan(gpus, {"g": 1}, [*([Send(a, b, "g", "add")] for a, b in hops),
                                 *([Send(b, a, "g", "copy")] for a, b in reversed(hops))])


def ring(gpus):
    n, (*keys,) = len(gpus), each_its_own(gpus)
    hops = [[(gpus[i], gpus[(i + 1) % n], keys[(i - s) % n]) for i in range(n)] for s in range(2 * n - 2)]
    return Plan(gpus, {key: Fraction(1, n) for key in keys},
                [[Send(*hop, "add" if s < n - 1 else "copy") for hop in step] for s, step in enumerate(hops)])


def two_at_the_first(gpus):
    return owned(gpus, {f"g{j}": gpus[max(0, j - 2)] for j in range(1, len(gpus) + 1)})


def larger_first(gpus):
    n = len(gpus)
    return owned(gpus, each_its_own(gpus), by({f"g{j}": n + 1 - j for j in range(1, n + 1)}))


def floats(gpus):
    return owned(gpus, each_its_own(gpus), dict.fromkeys(each_its_own(gpus), 1 / len(gpus)))


def fractions_of_floats(gpus):
    return owned(gpus, each_its_own(gpus), dict.fromkeys(each_its_own(gpus), Fraction(1 / len(gpus))))


def only_two_take_part(gpus):
    return Plan(gpus, {"g": 1}, [[Send(gpus[1], gpus[0], "g")]], holds=gpus[:2], wants=gpus[:1])


def always_four(gpus):
    keys = ["g1", "g2", "g3", "g4"]
    return owned(gpus, dict(zip(keys, gpus)), dict.fromkeys(keys, Fraction(1, 4)))


def at_once(gpus):
    return owned(gpus, each_its_own(gpus), steps=lambda collect, give_back: [collect + give_back])


def by_numbered_names(gpus):
    return owned(gpus, {f"g{j}": f"gpu{j - 1}" for j in range(1, len(gpus) + 1)})


def by_way_of_the_first(gpus):
    collect, give_back = owned(gpus, each_its_own(gpus)).steps
    to_first = [send for send in give_back if send.dst == gpus[0]]
    from_first = [Send(gpus[0], gpu, key, "copy") for key in each_its_own(gpus) for gpu in gpus[1:]]
    return Plan(gpus, dict.fromkeys(each_its_own(gpus), Fraction(1, len(gpus))), [collect, to_first, from_first])


def from_a_neighbor_only(gpus):
    around = [(a, b, key) for key, a, b in zip(each_its_own(gpus), gpus, [*gpus[1:], gpus[0]]) if a != b]
    return Plan(gpus, dict.fromkeys(each_its_own(gpus), Fraction(1, len(gpus))),
                [[Send(b, a, key, "add") for a, b, key in around], [Send(a, b, key, "copy") for a, b, key in around]])


def in_two_goes(collect, give_back):
    return [collect[::2], collect[1::2], give_back]


def first_key_kept(collect, give_back):
    return [collect, [send for send in give_back if send.key != "g1"]]


def chunked(gpus, cpu, chunks, order, keys=None, shares=None, back="copy", **more):
    """The CPU adds up; ``order(n)`` tells for each step which keys are collected and which are sent back."""
    keys = keys or [f"g{i}" for i in range(1, chunks + 1)]
    steps = [[*(Send(gpu, cpu, keys[i], "add") for i in up for gpu in gpus),
              *(Send(cpu, gpu, keys[i], back) for i in down for gpu in gpus)] for up, down in order(len(keys))]
    given = {"holds": gpus, "wants": gpus} | more
    return Plan([*gpus, cpu], shares or {key: Fraction(1, len(keys)) for key in keys}, steps, **given)


def shifted(n, by=1):
    return [([i] if i < n else [], [i - by] if i >= by else []) for i in range(n + by)]


def turn_by_turn(n):
    return [turn for i in range(n) for turn in (([i], []), ([], [i]))]


def two_by_two(n):
    """Only every second sum returns beside the next chunk."""
    pairs = [range(i, min(i + 2, n)) for i in range(0, n, 2)]
    return [turn for pair in pairs for turn in (([pair[0]], []), *(([i], [i - 1]) for i in pair[1:]), ([], [pair[-1]]))]


def staggered(gpus, cpu, chunks):
    n, keys = len(gpus), [f"g{i}" for i in range(1, chunks + 1)]
    steps = [[] for _ in range(chunks + n)]
    for i, key in enumerate(keys):
        for j, gpu in enumerate(gpus):
            steps[i + j].append(Send(gpu, cpu, key, "add"))
            steps[i + n].append(Send(cpu, gpu, key, "copy"))
    return Plan([*gpus, cpu], dict.fromkeys(keys, Fraction(1, chunks)), steps, holds=gpus, wants=gpus)


def handed_on_by_the_first(gpus, cpu, chunks):
    plan = aggregate_at(gpus, cpu, chunks)
    steps = [[send for send in step if send.src != cpu or send.dst == gpus[0]] for step in plan.steps]
    hand_on = [Send(gpus[0], gpu, key, "copy") for gpu in gpus[1:] for key in plan.share]
    return Plan(plan.nodes, plan.share, [*steps, hand_on], holds=gpus, wants=gpus)


def last_chunk_first(n):
    return [([i] if i < n else [], [n - i] if i else []) for i in range(n + 1)]


def in_tenths(servers):
    parts = [Fraction(round(10 * rate / sum(servers.values())), 10) for rate in servers.values()]
    return dict(zip(servers, [*parts[:-1], 1 - sum(parts[:-1])]))


def first_two(servers):
    return by({name: rate if i < 2 else 0 for i, (name, rate) in enumerate(servers.items())})


def by_numbered_servers(gpus, servers):
    numbered = {f"cpu{i}": rate for i, rate in enumerate(servers.values())}
    return served(gpus, numbered, by(numbered))


WRONG = {
    "own-gpu": {
        "all-on-one": [lambda gpus: aggregate_at(gpus, gpus[0]),
                       lambda gpus: owned(gpus, {f"g{j}": gpus[0] for j in range(1, len(gpus) + 1)}),
                       lambda gpus: owned(gpus, each_its_own(gpus), by({key: key == "g1" for key in each_its_own(gpus)}))],
        "whole-gradient": [all_to_all, all_to_all_in_one_piece, along_a_chain, by_way_of_the_first],
        "uneven": [two_at_the_first, larger_first],
        "one-after-another": [lambda gpus: owned(gpus, each_its_own(gpus), steps=key_by_key),
                              lambda gpus: owned(gpus, each_its_own(gpus), steps=in_two_goes)],
        "ring": [ring],
        "not-sent-back": [lambda gpus: owned(gpus, each_its_own(gpus), steps=lambda collect, give_back: [collect])],
        "last-one": [lambda gpus: owned(gpus, each_its_own(gpus), steps=lambda up, down: [up, down[: 1 - len(gpus)]]),
                     lambda gpus: owned(gpus, each_its_own(gpus), steps=first_key_kept)],
        "not-collected": [from_a_neighbor_only],
        "counted-twice": [lambda gpus: owned(gpus, each_its_own(gpus), back="add")],
        "too-early": [at_once],
        "overwritten": [lambda gpus: owned(gpus, each_its_own(gpus),
                                           steps=lambda up, down: [[s._replace(op="copy") for s in up], down])],
        "to-itself": [lambda gpus: Plan(gpus, {"g": 1}, [[Send(gpu, gpus[0], "g") for gpu in gpus]])],
        "inexact": [floats, fractions_of_floats],
        "share-sum": [lambda gpus: owned(gpus, each_its_own(gpus), dict.fromkeys(each_its_own(gpus), 1))],
        "not-general": [always_four, by_numbered_names, lambda gpus: sharded(gpus, gpus[:4])],
        "other-nodes": [lambda gpus: sharded(gpus, ["cpu"])],
        "task-changed": [only_two_take_part],
    },
    "overlap": {
        "chunks-ignored": [lambda gpus, cpu, chunks: aggregate_at(gpus, cpu)],
        "not-overlapped": [lambda *given: chunked(*given, turn_by_turn),
                           lambda *given: chunked(*given, lambda n: [(range(n), []), ([], range(n))]),
                           lambda *given: chunked(*given, lambda n: [*(([i], []) for i in range(n)), ([], range(n))])],
        "waits-too-long": [lambda *given: chunked(*given, lambda n: shifted(n, by=2)),
                           lambda *given: chunked(*given, two_by_two), staggered],
        "not-general": [lambda gpus, cpu, chunks: aggregate_at(gpus, "cpu", chunks),
                        lambda gpus, cpu, chunks: aggregate_at(gpus, cpu, 4)],
        "other-chunks": [lambda gpus, cpu, chunks: aggregate_at(gpus, cpu, 2 * chunks)],
        "unequal-chunks": [lambda *given: chunked(
            *given, shifted, shares=by({f"g{i}": i for i in range(1, given[2] + 1)}))],
        "too-early": [lambda *given: chunked(*given, lambda n: [([i], [i]) for i in range(n)]),
                      lambda *given: chunked(*given, last_chunk_first)],
        "last-one": [lambda *given: chunked(*given, lambda n: shifted(n)[:-1])],
        "not-sent-back": [lambda *given: chunked(*given, lambda n: [([i], []) for i in range(n)])],
        "counted-twice": [lambda *given: chunked(*given, shifted, back="add")],
        "task-changed": [lambda *given: chunked(*given, shifted, holds=None, wants=None)],
        "unknown-name": [lambda *given: chunked(*given, shifted, shares={"g": 1})],
        "inexact": [lambda *given: chunked(
            *given, shifted, shares={f"g{i}": 1 / given[2] for i in range(1, given[2] + 1)})],
        "between-workers": [lambda gpus, cpu, chunks: Plan(
            [*gpus, cpu], {"g": 1}, aggregate_at(gpus, gpus[0]).steps, holds=gpus, wants=gpus), handed_on_by_the_first],
        "other-nodes": [lambda gpus, cpu, chunks: sharded(gpus, chunks=chunks)],
        "too-many-bytes": [lambda *given: chunked(*given, lambda n: [*shifted(n), ([], range(n))])],
    },
    "split": {
        "equal-split": [lambda gpus, servers: served(gpus, servers, equal(servers))],
        "inverse-split": [lambda gpus, servers: served(
            gpus, servers, by({name: 1 / Fraction(rate) for name, rate in servers.items()}))],
        "all-on-one": [lambda gpus, servers: served(
            gpus, servers, {name: int(name == max(servers, key=servers.get)) for name in servers})],
        "wrong-split": [lambda gpus, servers: served(
            gpus, servers, by({name: Fraction(rate) ** 2 for name, rate in servers.items()})),
                        lambda gpus, servers: served(gpus, servers, in_tenths(servers))],
        "inexact": [lambda gpus, servers: served(
            gpus, servers, {name: rate / sum(servers.values()) for name, rate in servers.items()})],
        "one-after-another": [lambda gpus, servers: served(gpus, servers, by(servers), key_by_key)],
        "overlapped": [lambda gpus, servers: sharded(gpus, by(servers), chunks=4)],
        "not-sent-back": [lambda gpus, servers: served(gpus, servers, by(servers), lambda up, down: [up])],
        "too-early": [lambda gpus, servers: served(gpus, servers, by(servers), lambda up, down: [up + down])],
        "task-changed": [lambda gpus, servers: served(gpus, servers, by(servers), wants=None),
                         lambda gpus, servers: served(gpus, servers, by(servers), holds=None)],
        "between-workers": [lambda gpus, servers: Plan(
            [*gpus, *servers], {"g": 1}, aggregate_at(gpus, gpus[0]).steps, holds=gpus, wants=gpus),
                            lambda gpus, servers: sharded(gpus, by(dict.fromkeys(gpus, 16 * 10**9) | servers))],
        "other-nodes": [lambda gpus, servers: sharded(gpus)],
        "not-general": [lambda gpus, servers: served(gpus, servers, {"cpu0": "2/3", "cpu1": "1/3"}),
                        by_numbered_servers,
                        lambda gpus, servers: served(gpus, servers, first_two(servers)),
                        lambda gpus, servers: served(
                            gpus, servers, by({name: min(rate, 16 * 10**9) for name, rate in servers.items()})),
                        lambda gpus, servers: served(
                            gpus, servers, by({name: rate // 10**9 for name, rate in servers.items()})),
                        lambda gpus, servers: served(gpus, servers, {
                            name: Fraction(rate / sum(servers.values())).limit_denominator(100)
                            for name, rate in servers.items()})],
        "share-sum": [lambda gpus, servers: served(gpus, servers, {name: Fraction(1, 2) for name in [*servers, "x"]}),
                      lambda gpus, servers: served(gpus, servers, {
                          name: int(100 * rate / sum(servers.values())) for name, rate in servers.items()})],
        "too-many-bytes": [lambda gpus, servers: served(
            gpus, servers, by(servers), lambda up, down: [up, down, down])],
    },
}
