"""Judge where operators are placed: every device has room, and only what must be cut is cut."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure, size_text, unlike

MB = 10**6


@dataclass(frozen=True)
class PlaceCase:
    """Operators with their weights and input in MB, devices, their memory in MB, and whether there is a way."""

    operators: tuple[tuple[str, float, float], ...]
    devices: tuple[str, ...]
    memory: float
    possible: bool = True

    @property
    def label(self) -> str:
        needs = ", ".join(f"{name} {weights:g}+{given:g}" for name, weights, given in self.operators)
        return f"n = {len(self.devices)}, {self.memory:g} MB: {needs}"

    def given(self) -> tuple[dict, list, int]:
        operators = {name: (round(weights * MB), round(given * MB)) for name, weights, given in self.operators}
        return operators, [*self.devices], round(self.memory * MB)

    def parts(self, name: str) -> int:
        """Return into how many parts an operator must be cut: as few as fit on empty devices."""
        weights, given = self.given()[0][name]
        room = round(self.memory * MB) - given
        return max(1, -(-weights // room)) if room > 0 else len(self.devices) + 1


def judge(case: PlaceCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    operators, devices, memory = case.given()
    where = call(case, answer, dict(operators), [*devices], memory, none=True)
    if where is None:
        if case.possible:
            raise failure("gives-up", "place-none", case)
        return {}
    if not isinstance(where, Mapping):
        raise failure("wrong-type", "place-not-a-dict", case, type=type(where).__name__)
    if not where:
        raise failure("todo", "place-nothing", case)
    if not case.possible:
        cut = {name: where.get(name) for name in operators}
        more = [name for name in cut if isinstance(cut[name], list | tuple) and len(cut[name]) > case.parts(name)]
        raise failure("cut-for-nothing" if more else "no-way", "place-no-way", case)
    used, of_weights = dict.fromkeys(devices, 0.0), dict.fromkeys(devices, 0.0)
    for name in where:
        if name not in operators:
            raise failure("differs", "place-unknown", case, name=repr(name))
    for name, (weights, given) in operators.items():
        if name not in where:
            raise failure("differs", "place-left-out", case, name=name)
        homes = [where[name]] if isinstance(where[name], str) else where[name]
        if not isinstance(homes, list | tuple) or not homes:
            raise failure("wrong-type", "place-no-list", case, name=name, type=type(homes).__name__)
        for home in homes:
            if not isinstance(home, str) or home not in used:
                raise failure("differs", "place-unknown", case, name=repr(home))
            used[home] += weights / len(homes) + given
            of_weights[home] += weights / len(homes)
        if len({*homes}) < len(homes):
            raise failure("differs", "place-same-device", case, name=name, devices=" ".join(homes))
        if case.parts(name) < len(homes):
            raise failure("cut-for-nothing", "place-parts", case, name=name, got=len(homes), enough=case.parts(name))
        if case.parts(name) > len(homes):
            needs, _ = unlike(weights / len(homes) + given, memory, size_text)
            mistake = "whole" if len(homes) == 1 and weights > memory else "input-forgotten"
            raise failure(mistake, "place-too-few", case, name=name, got=len(homes), needs=needs)
    for home in devices:
        if used[home] > memory:
            mistake = "too-full" if of_weights[home] > memory else "input-forgotten"
            needs, _ = unlike(used[home], memory, size_text)
            raise failure(mistake, "place-too-full", case, device=home, needs=needs)
    return {"used": ", ".join(f"{home} {size_text(nbytes)}" for home, nbytes in used.items())}


def _packed(*sizes: int) -> PlaceCase:
    """Return operators that fill four devices to the last byte, which hardly any order of placing them finds."""
    return PlaceCase(tuple(zip("abcdefghijkl", (size - 1 for size in sizes), [1] * 12, strict=True)), tuple("pqrs"), 60)


PAIR, THREE = ("gpu1", "gpu2"), ("left", "middle", "right")
CASES = (
    PlaceCase((("op1", 16, 0.1), ("op2", 1, 0.3)), PAIR, 10),
    PlaceCase((("op1", 6, 1), ("op2", 2, 0.5)), ("gpu1",), 10),
    PlaceCase((("op1", 10, 1), ("op2", 1, 1)), PAIR, 10),
    PlaceCase((("op1", 9.6, 0.2), ("op2", 9.6, 0.2)), PAIR, 10),
    PlaceCase((("a", 3, 1), ("b", 3, 1), ("wide", 16, 1)), THREE, 10),
    PlaceCase((("wide", 16, 1), ("a", 5, 1), ("b", 3, 1), ("c", 0.5, 0.5)), THREE, 10),
    PlaceCase((("wide", 12, 5),), THREE, 10),
    PlaceCase((("a", 2, 1), ("b", 2, 1), ("c", 6, 1), ("d", 6, 1)), PAIR, 10),
    PlaceCase((("a", 4, 1), ("b", 3, 1), ("c", 2, 1), ("d", 2, 1), ("e", 2, 1), ("f", 1, 1)), PAIR, 10),
    _packed(25, 6, 23, 29, 22, 19, 12, 17, 27, 10, 26, 24),
    _packed(12, 24, 17, 29, 39, 28, 13, 11, 23, 19, 10, 15),
    PlaceCase((("op1", 25, 1),), PAIR, 10, False),
    PlaceCase((("op1", 4, 11),), PAIR, 10, False),
    PlaceCase((("a", 6, 0.1), ("b", 6, 0.1), ("c", 6, 0.1)), PAIR, 10, False),
    PlaceCase((("last", 1, 0.5), ("wide", 40, 1), ("x", 0.4, 0.1)), ("e", "d", "c", "b", "a"), 11),
)
