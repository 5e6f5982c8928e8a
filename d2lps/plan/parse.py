"""Turn input written by people into the plain data of a plan; raise PlanError for input that cannot be read."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from numbers import Rational

from d2lps.messages import text
from d2lps.plan.acts import PlanError, Send, Update
from d2lps.plan.lazy import LARGE, Cells, Grid, Lazy, Product
from d2lps.plan.optimizers import RULES, fitting, is_number, numbers_of
from d2lps.plan.share import Share

Pair = tuple[str, str]
Wanted = tuple[str, str, str]


def names(nodes: object) -> tuple[str, ...]:
    """Return node names as a tuple: at least one, all different, without white space."""
    if isinstance(nodes, str) or not isinstance(nodes, Iterable):
        raise PlanError("names-wanted", given=repr(nodes))
    nodes, seen = tuple(nodes), set()
    if not nodes:
        raise PlanError("no-nodes")
    for name in nodes:
        if not _is_name(name):
            raise PlanError("bad-name", name=repr(name))
        if name in seen:
            raise PlanError("duplicate-name", node=name)
        seen.add(name)
    return nodes


def fraction(key: str, part: "Fraction | int | str") -> Fraction:
    """Return the exact share of ``key``; refuse floats."""
    if isinstance(part, float) and isfinite(part):
        near = Fraction(part).limit_denominator(1000)
        exact = near if float(near) == part else Fraction(repr(part))
        raise PlanError("inexact-share", key=key, share=part, exact=exact)
    try:  # no exponents: Fraction would write out all digits of "1e99999999"
        plain = isinstance(part, Rational) or (isinstance(part, str) and len(part) <= 100 and "e" not in part.lower())
        share = Fraction(part) if plain else None
    except (ValueError, ZeroDivisionError):
        share = None
    if share is None or share < 0:
        raise PlanError("bad-share", key=key, share=repr(part))
    return share


def shares(parts: Mapping[str, "Fraction | int | str"]) -> Share:
    """Return key → share, together exactly 1. The described keys of a large plan stay so."""
    if isinstance(parts, Grid) and parts.n > LARGE:
        return parts
    if not isinstance(parts, Mapping):
        raise PlanError("share-wanted", given=repr(parts))
    for key in parts:
        if not _is_name(key):
            raise PlanError("bad-key", key=repr(key))
    share = Share({key: fraction(key, part) for key, part in parts.items()})
    if (total := sum(share.values())) != 1:
        raise PlanError("share-sum", total=total)
    return share


def steps(steps: Iterable, nodes: tuple[str, ...], keys: Share) -> Sequence[tuple[Send | Update, ...]]:
    """Return steps of acts. An act may also be a list of its four fields, as in JSON; lazy steps stay lazy."""
    if isinstance(steps, Lazy) and len(nodes) > LARGE:
        return steps
    known = dict.fromkeys(nodes)
    return tuple(
        tuple(_act(number, act, known, keys) for act in _require_list(step))
        for number, step in enumerate(_require_list(steps), 1)
    )


def _require_list(steps: object) -> Iterable:
    if isinstance(steps, str | Send | Update) or not isinstance(steps, Iterable):
        raise PlanError("steps-wanted", given=repr(steps))
    return steps


def pairs(holds: Iterable | None, nodes: tuple[str, ...], keys: Share) -> Sequence[Pair]:
    """Return the (node, key) pairs that are held, in the order of nodes and keys, so that plans are equal by content.

    A node's name alone stands for all keys, None for all nodes.
    """
    if isinstance(holds, Cells) and len(nodes) > LARGE:
        return holds
    held = _pairs("holds", holds, nodes, keys)
    return tuple(held) if isinstance(held, dict) else _product(held, [(key,) for key in keys])


def states(wants: Iterable | None, nodes: tuple[str, ...], keys: Share, updated: set[str]) -> Sequence[Wanted]:
    """Return the (node, key, state) that are wanted, in the same order.

    A missing state is "updated" for the keys in ``updated``, else "sum".
    """
    if isinstance(wants, Cells) and len(nodes) > LARGE:
        return wants
    default = {key: "updated" if key in updated else "sum" for key in keys}
    wanted = _pairs("wants", wants, nodes, keys)
    if isinstance(wanted, dict):
        return tuple((node, key, state or default[key]) for (node, key), state in wanted.items())
    return _product(wanted, list(default.items()))


def _pairs(field: str, items: Iterable | None, nodes: tuple[str, ...], keys: Share) -> dict[Pair, str | None] | list:
    """Return (node, key) → its given state or None; for a large plan only the nodes that have every key."""
    if isinstance(items, str) or not isinstance(items, Iterable | None):
        raise PlanError("pairs-wanted", where=field, given=repr(items))
    items, known = nodes if items is None else tuple(items), dict.fromkeys(nodes)
    for item in items:
        parts = (item,) if isinstance(item, str) else item
        if not isinstance(parts, tuple | list) or not 1 <= len(parts) <= (3 if field == "wants" else 2):
            raise PlanError("pairs-wanted", where=field, given=repr(item))
        _require_known(None, field, parts[:1], known, parts[1:2], keys)
    if len(nodes) > LARGE and all(isinstance(item, str) for item in items):
        named = {*items}
        return [node for node in nodes if node in named]
    states: dict[Pair, str | None] = {}
    for item in items:
        node, *more = (item,) if isinstance(item, str) else item
        state = more[1] if len(more) == 2 else None
        if state not in (None, "sum", "updated"):
            raise PlanError("unknown-state", node=node, key=more[0], state=repr(state))
        for key in more[:1] or keys:
            states[node, key] = state or states.get((node, key))
    places = {name: i for i, name in enumerate(nodes)}, {key: j for j, key in enumerate(keys)}
    return dict(sorted(states.items(), key=lambda item: (places[0][item[0][0]], places[1][item[0][1]])))


def _product(nodes: Sequence[str], rows: Sequence[tuple]) -> Product:
    return Product(tuple(nodes), tuple(rows), range(len(nodes) * len(rows)))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.split() == [name] and name.isprintable() and not {",", "→"} & {*name}


def _require_known(
    step: int | None, where: str | None, nodes: Iterable, known: Mapping, keys: Iterable, known_keys: Share
) -> None:
    for node in nodes:
        if not isinstance(node, str) or node not in known:
            raise PlanError("unknown-node", step=step, where=where or _step(step), node=node, nodes=" ".join(known))
    for key in keys:
        if not isinstance(key, str) or key not in known_keys:
            raise PlanError("unknown-key", step=step, where=where or _step(step), key=key, keys=" ".join(known_keys))


def _step(step: int | None) -> str:
    return text("plan.step", step=step)  # made only for a refusal: a large plan has a million acts


def _act(step: int, act: object, nodes: Mapping, keys: Share) -> Send | Update:
    if not isinstance(act, Send | Update):
        if isinstance(act, str) or not isinstance(act, tuple | list) or len(act) != 4:
            raise PlanError("not-an-act", step=step, act=repr(act))
        act = Send(*act) if isinstance(act[3], str) else Update(*act)
    if isinstance(act, Send):
        _require_known(step, None, (act.src, act.dst), nodes, [act.key], keys)
        if act.op not in ("add", "copy"):
            raise PlanError("unknown-op", step=step, src=act.src, dst=act.dst, key=act.key, op=repr(act.op))
        return act
    _require_known(step, None, [act.node], nodes, [act.key], keys)
    if not isinstance(act.rule, str) or act.rule not in RULES:
        rules = " ".join(RULES)
        raise PlanError("unknown-rule", step=step, node=act.node, key=act.key, rule=repr(act.rule), rules=rules)
    return act._replace(numbers=_numbers(step, act))


def _numbers(step: int, act: Update) -> tuple[tuple[str, float], ...]:
    known = numbers_of(act.rule)

    def refusal(name: object) -> PlanError:
        return PlanError("bad-numbers", step=step, node=act.node, rule=act.rule, name=name, names=" ".join(known))

    try:
        numbers = dict(act.numbers)
    except (TypeError, ValueError):
        raise refusal(repr(act.numbers)) from None
    for name, value in numbers.items():
        if name not in known or not is_number(value):
            raise refusal(name)
        if taken := fitting(name, value):
            shown = {"node": act.node, "rule": act.rule, "name": name, "value": f"{value:g}"}
            raise PlanError("unfit-number", step=step, plan=None, taken=taken, **shown)
    for name, needed in known.items():
        if needed and name not in numbers:
            raise refusal(name)
    return tuple(sorted((name, float(value)) for name, value in numbers.items()))
