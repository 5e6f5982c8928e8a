"""Judge the bytes that a device sends and keeps in three ways to share attention."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure, number, sealed, size_text, unlike, withheld

WAYS = ("gather", "ring", "heads")


@dataclass(frozen=True)
class ShapeCase:
    """An attention, and the number of devices; the numbers of heads of keys and of devices divide one another."""

    tokens: int
    n: int
    heads: int
    groups: int
    size: int = 128
    itemsize: int = 2

    @property
    def label(self) -> str:
        return f"n = {self.n}, tokens = {self.tokens}, heads = {self.heads}, groups = {self.groups}"

    @withheld
    def ways(self, stays: bool = False, **changed: float) -> dict[str, tuple[float, float] | None]:
        """Return way → (bytes sent, bytes of keys and values kept); ``changed`` does one thing in another way.

        ``stays`` counts what stays on its device as sent. The others: ``groups`` heads of keys, ``both`` keys and
        values, ``returned`` outputs, ``least`` heads of keys on a device, ``blocks`` of the ring that are there.
        """
        one = self.tokens // self.n * self.size * self.itemsize  # one head of the tokens of a device
        others = self.n if stays else self.n - 1
        groups, both = changed.get("groups", self.groups), changed.get("both", 2)
        local = max(changed.get("least", 1), groups / self.n)
        ring = changed.get("blocks", min(self.n, 3))
        queries = self.heads / self.n * (1 + changed.get("returned", 1))
        return {
            "gather": (others * both * groups * one, self.n * both * groups * one),
            "ring": (others * both * groups * one, ring * both * groups * one),
            "heads": None
            if self.heads % self.n
            else (others * (queries + both * local) * one, self.n * both * local * one),
        }


@sealed
def right_ways(case: ShapeCase) -> dict[str, tuple[float, float] | None]:
    return case.ways()


def judge(case: ShapeCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    arguments = case.tokens, case.n, case.heads, case.groups, case.size, case.itemsize
    got, right = _table(case, call(case, answer, *arguments)), right_ways(case)
    for way in WAYS:
        if (got[way] is None) != (right[way] is None):
            sentence = "which-none" if got[way] is None else "which-possible"
            raise failure("possible", sentence, case, way=way, heads=case.heads, n=case.n)
        if right[way] is None:
            continue
        for i, what in enumerate(("sent", "kept")):
            if abs(got[way][i] - right[way][i]) > 1e-6 * right[way][i]:
                values = dict(zip(("got", "right"), unlike(got[way][i], right[way][i], digits=12), strict=True))
                raise failure(_mistake(case, way, i, got[way][i]), f"which-{what}", case, way=way, **values)
    if case is not CASES[0]:
        return {}
    (sent, everything), (_, ring), (by_heads, _) = (right[way] for way in WAYS)
    sizes = {"sent": sent, "all": everything, "ring": ring, "heads": by_heads}
    return {name: size_text(size) for name, size in sizes.items()}


def _table(case: ShapeCase, got: object) -> dict[str, tuple[float, float] | None]:
    if not isinstance(got, Mapping):
        raise failure("wrong-type", "which-no-dict", case, type=type(got).__name__)
    if not got:
        raise failure("todo", "which-nothing", case)
    table: dict[str, tuple[float, float] | None] = {}
    for way in WAYS:
        pair = got.get(way, ())
        try:
            sent, kept = map(number, (0, 0) if pair is None else pair)
        except (TypeError, ValueError):
            raise failure("wrong-type", "which-pair", case, way=way) from None
        table[way] = None if pair is None else tuple(max(-1e300, min(x, 1e300)) for x in (sent, kept))
    return table


def _mistake(case: ShapeCase, way: str, i: int, got: float) -> str:
    """Return the name of the first mistake that leads to this number."""
    right = right_ways(case)[way][i]
    for mistake, tables in _wrong(case).items():
        for table in tables:
            value = table[way][i]
            if value != right and abs(got - value) <= 1e-9 * value:
                return mistake
    return "differs"


@sealed
def _wrong(case: ShapeCase) -> dict[str, list[dict]]:
    """Return the tables that each mistake leads to; the first that fits names it."""
    wrong = {
        "own-part": [{"stays": True}],
        "keys-only": [{"both": 1}],
        "all-heads": [{"groups": case.heads}],
        "no-return": [{"returned": 0}],
        "few-groups": [{"least": 0}, {"least": case.groups}],
        "ring-memory": [{"blocks": blocks} for blocks in (1, 2, 3, case.n)],
    }
    return {mistake: [case.ways(**change) for change in changes] for mistake, changes in wrong.items()}


CASES = (
    ShapeCase(131072, 8, 128, 8),
    ShapeCase(131072, 4, 32, 32),
    ShapeCase(65536, 32, 128, 8),
    ShapeCase(12000, 12, 32, 4),
    ShapeCase(8192, 2, 16, 4, size=64, itemsize=4),
    ShapeCase(4096, 1, 8, 2),
    ShapeCase(30720, 6, 24, 6, size=96),
)
