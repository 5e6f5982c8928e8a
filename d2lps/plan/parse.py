"""From what people write to the plain data of a plan; what cannot be read is refused with a PlanError."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from numbers import Rational

from d2lps.messages import text
from d2lps.plan.acts import PlanError, Send, Update
from d2lps.plan.lazy import LARGE, Lazy, Product
from d2lps.plan.optimizers import RULES, is_number, numbers_of
from d2lps.plan.share import Share

Pair = tuple[str, str]
Wanted = tuple[str, str, str]


def names(nodes: Iterable[str]) -> tuple[str, ...]:
    """Node names: at least one, no two alike, no white space."""
    if isinstance(nodes, str) or not isinstance(nodes, Iterable):
        raise PlanError("names-wanted", given=repr(nodes))
    found = tuple(nodes)
    if not found:
        raise PlanError("no-nodes")
    seen = set()
    for name in found:
        if not _is_name(name):
            raise PlanError("bad-name", name=repr(name))
        if name in seen:
            raise PlanError("duplicate-name", node=name)
        seen.add(name)
    return found


def fraction(key: str, part: "Rational | str") -> Fraction:
    """The share of ``key``, exactly; floats are refused."""
    if isinstance(part, float) and isfinite(part):
        near = Fraction(part).limit_denominator(1000)
        exact = near if float(near) == part else Fraction(repr(part))
        raise PlanError("inexact-share", key=key, share=part, exact=exact)
    try:  # no exponents: "1e99999999" would be written out
        plain = isinstance(part, Rational) or (isinstance(part, str) and len(part) <= 100 and "e" not in part.lower())
        found = Fraction(part) if plain else None
    except (ValueError, ZeroDivisionError):
        found = None
    if found is None or found < 0:
        raise PlanError("bad-share", key=key, share=repr(part))
    return found


def shares(parts: Mapping[str, "Rational | str"]) -> Share:
    """Key → share, together exactly 1."""
    if not isinstance(parts, Mapping):
        raise PlanError("share-wanted", given=repr(parts))
    for key in parts:
        if not _is_name(key):
            raise PlanError("bad-key", key=repr(key))
    found = Share({key: fraction(key, part) for key, part in parts.items()})
    if sum(found.values()) != 1:
        raise PlanError("share-sum", total=sum(found.values()))
    return found


def steps(given: Iterable, nodes: tuple[str, ...], keys: Share) -> Sequence[tuple[Send | Update, ...]]:
    """Steps of acts; an act may also be its four fields, as JSON has them. An algorithm's lazy steps stay lazy."""
    if isinstance(given, str | Send | Update) or not isinstance(given, Iterable):
        raise PlanError("steps-wanted", given=repr(given))
    if isinstance(given, Lazy) and len(nodes) > LARGE:
        return given
    found, known = [], dict.fromkeys(nodes)
    for number, step in enumerate(given, 1):
        if isinstance(step, str | Send | Update) or not isinstance(step, Iterable):
            raise PlanError("steps-wanted", given=repr(step))
        found.append(tuple(_act(number, act, known, keys) for act in step))
    return tuple(found)


def pairs(given: Iterable | None, nodes: tuple[str, ...], keys: Share) -> Sequence[Pair]:
    """What is held: (node, key) pairs, in the order of nodes and keys, so that plans are equal by content.

    A node's name alone stands for all keys, None for all nodes.
    """
    found = _pairs("holds", given, nodes, keys)
    return tuple(found) if isinstance(found, dict) else _product(found, [(key,) for key in keys])


def states(given: Iterable | None, nodes: tuple[str, ...], keys: Share, updated: set[str]) -> Sequence[Wanted]:
    """What is wanted: (node, key, state), in the same order. A state that is not given is that of the whole plan."""
    default = {key: "updated" if key in updated else "sum" for key in keys}
    found = _pairs("wants", given, nodes, keys)
    if isinstance(found, dict):
        return tuple((node, key, state or default[key]) for (node, key), state in found.items())
    return _product(found, list(default.items()))


def _pairs(field: str, given: Iterable | None, nodes: tuple[str, ...], keys: Share) -> dict[Pair, str | None] | list:
    """(node, key) → the state that was given with it, or None; of a large plan just the nodes that have every key."""
    if isinstance(given, str) or not isinstance(given, Iterable | None):
        raise PlanError("pairs-wanted", where=field, given=repr(given))
    given, known = nodes if given is None else tuple(given), dict.fromkeys(nodes)
    found: dict[Pair, str | None] = {}
    for item in given:
        whole = (item,) if isinstance(item, str) else item
        if not isinstance(whole, tuple | list) or not 1 <= len(whole) <= (3 if field == "wants" else 2):
            raise PlanError("pairs-wanted", where=field, given=repr(item))
        _known(None, field, whole[:1], known, whole[1:2], keys)
    if len(nodes) > LARGE and all(isinstance(item, str) for item in given):
        named = {*given}
        return [node for node in nodes if node in named]
    for item in given:
        node, *more = (item,) if isinstance(item, str) else item
        state = more[1] if len(more) == 2 else None
        if state not in (None, "sum", "updated"):
            raise PlanError("unknown-state", node=node, key=more[0], state=repr(state))
        for key in more[:1] or keys:
            found[node, key] = state or found.get((node, key))
    return {(node, key): found[node, key] for node in nodes for key in keys if (node, key) in found}


def _product(nodes: Sequence[str], rows: Sequence[tuple]) -> Product:
    return Product(tuple(nodes), tuple(rows), range(len(nodes) * len(rows)))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.split() == [name] and name.isprintable() and not {",", "→"} & {*name}


def _known(step: int | None, where: str, some: Iterable, nodes: Mapping, named: Iterable, keys: Share) -> None:
    for node in some:
        if not isinstance(node, str) or node not in nodes:
            raise PlanError("unknown-node", step=step, where=where, node=node, nodes=" ".join(nodes))
    for key in named:
        if not isinstance(key, str) or key not in keys:
            raise PlanError("unknown-key", step=step, where=where, key=key, keys=" ".join(keys))


def _act(step: int, act: object, nodes: Mapping, keys: Share) -> Send | Update:
    if not isinstance(act, Send | Update):
        if isinstance(act, str) or not isinstance(act, tuple | list) or len(act) != 4:
            raise PlanError("not-an-act", step=step, act=repr(act))
        act = Send(*act) if isinstance(act[3], str) else Update(*act)
    where = text("plan.step", step=step)
    if isinstance(act, Send):
        _known(step, where, (act.src, act.dst), nodes, [act.key], keys)
        if act.op not in ("add", "copy"):
            raise PlanError("unknown-op", step=step, src=act.src, dst=act.dst, key=act.key, op=repr(act.op))
        return act
    _known(step, where, [act.node], nodes, [act.key], keys)
    if not isinstance(act.rule, str) or act.rule not in RULES:
        rules = " ".join(RULES)
        raise PlanError("unknown-rule", step=step, node=act.node, key=act.key, rule=repr(act.rule), rules=rules)
    return act._replace(numbers=_numbers(step, act))


def _numbers(step: int, act: Update) -> tuple[tuple[str, float], ...]:
    known, given = numbers_of(act.rule), act.numbers

    def refuse(name: object) -> PlanError:
        return PlanError("bad-numbers", step=step, node=act.node, rule=act.rule, name=name, names=" ".join(known))

    try:
        numbers = dict(given)
    except (TypeError, ValueError):
        raise refuse(repr(given)) from None
    for name, value in numbers.items():
        if name not in known or not is_number(value):
            raise refuse(name)
        numbers[name] = float(value)
    for name, needed in known.items():
        if needed and name not in numbers:
            raise refuse(name)
    return tuple(sorted(numbers.items()))
