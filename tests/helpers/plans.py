"""Plans that tests of several rooms are about: a ring by hand, any legal plan, and JSON that is none."""

import json
from contextlib import contextmanager
from fractions import Fraction
from itertools import zip_longest

import pytest
from hypothesis import strategies as st

from d2lps import Plan, Send, Update


@contextmanager
def large_beyond(nodes):
    """Treat plans of more than so few nodes as large, with lazy steps: the steps of really large ones take long."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("plan.plan", "plan.parse", "simulate.cost"):
            patch.setattr(f"d2lps.{module}.LARGE", nodes)
        yield


def ring(nodes, halfway=False) -> Plan:
    """The chunked ring, written by hand: key j goes once around and ends, complete, at the node before node j."""
    n = len(nodes)
    around = range(n - 1) if halfway else range(2 * (n - 1))
    steps = [
        [Send(nodes[i], nodes[(i + 1) % n], f"g{(i - t) % n + 1}", "add" if t < n - 1 else "copy") for i in range(n)]
        for t in around
    ]
    wants = [(nodes[(j - 1) % n], f"g{j + 1}") for j in range(n)] if halfway else nodes
    return Plan(nodes, {f"g{j + 1}": Fraction(1, n) for j in range(n)}, steps, wants=wants)


@st.composite
def legal_plans(draw, max_nodes=5):
    """A legal plan: for each key sums merge at random, copies stray where they do no harm, then the sum is spread."""
    random = draw(st.randoms(use_true_random=False))
    nodes = [f"n{i}" for i in range(random.randint(1, max_nodes))]
    weights = [random.randint(0, 4) for _ in range(random.randint(1, 3))]
    weights[random.randrange(len(weights))] += 1
    share = {f"k{j}": Fraction(w, sum(weights)) for j, w in enumerate(weights)}
    holds, wants, lanes = [], [], []
    for key in share:
        holders = [node for node in nodes if random.random() < 0.8] or [random.choice(nodes)]
        wanting = [node for node in nodes if random.random() < 0.8]
        holds += [(node, key) for node in holders]
        wants += [(node, key) for node in wanting]
        lanes.append(list(_merge_and_spread(random, nodes, key, holders, wanting)))
    steps = [[act for lane in step for act in lane] for step in zip_longest(*lanes, fillvalue=())]
    return Plan(nodes, share, steps, holds=holds, wants=wants)


def _merge_and_spread(random, nodes, key, holders, wanting):
    live = list(holders)  # their sums are disjoint and together complete
    while len(live) > 1:
        random.shuffle(live)
        roots = live[: random.randint(1, len(live) - 1)]
        acts = [Send(src, random.choice(roots), key, "add") for src in live[len(roots) :]]
        spare = [node for node in nodes if node not in live]
        if spare and random.random() < 0.5:
            acts.append(Send(random.choice(live), random.choice(spare), key, "copy"))
        live = roots
        random.shuffle(acts)
        yield acts
    if random.random() < 0.5:
        yield [Update(live[0], key, "sgd", (("lr", random.choice([0.1, 1.0])),))]
    have, rest = list(live), [node for node in wanting if node not in live]
    while rest:
        now = rest[: random.randint(1, len(rest))]
        yield [Send(random.choice(have), node, key, "copy") for node in now]
        have, rest = have + now, rest[len(now) :]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=6,
)


@st.composite
def damaged(draw, source):
    """JSON text with one value in it replaced by anything at all, or left out."""
    data = json.loads(source)
    places = [(box, key) for box in boxes(data) for key in (box if isinstance(box, dict) else range(len(box)))]
    box, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        box[key] = draw(anything | st.sampled_from([10**400, float("inf"), float("nan"), "1e3", [[]], {"a": []}]))
    else:
        del box[key]
    return json.dumps(data)


def boxes(data):
    if isinstance(data, dict | list) and data:
        yield data
        for inner in data.values() if isinstance(data, dict) else data:
            yield from boxes(inner)
