"""Published figures as data: the compute of whole trainings, the speed of GPUs, and list prices.

>>> TRAINED["GPT-3"].flops / TRAINED["AlexNet"].flops
668085.1063829787
>>> PRICES["p5.48xlarge"].each
6.88

They are in ``published.toml``, each with its day and its source.
"""

from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from d2lps.scaling.models import data


class Trained(NamedTuple):
    """The FLOPs of a whole training, or the FLOP/s of a GPU.

    Args:
        name, day: The model or the GPU, and the day of its publication.
        flops: FLOPs, or FLOP/s.
        source: A key of ``chapters/references.toml``; ``""`` for data sheets.
        low, high: The interval of an estimate; 0 if the source gives none.
    """

    name: str
    day: date
    flops: float
    source: str = ""
    low: float = 0
    high: float = 0

    @property
    def year(self) -> float:
        """The day as a year with decimals."""
        return self.day.year + self.day.timetuple().tm_yday / 366


@dataclass(frozen=True)
class Price:
    """The list price of a rented machine.

    Args:
        name, gpu: The machine and its GPUs.
        count: How many GPUs it has.
        dollars: US dollars per hour for the whole machine, on demand.
        day, source: When it was in the list, and a key of ``chapters/references.toml``.
    """

    name: str
    gpu: str
    count: int
    dollars: float
    day: date
    source: str

    @property
    def each(self) -> float:
        """US dollars per hour for one GPU."""
        return self.dollars / self.count


_TABLES = data("published.toml")
TRAINED = {entry["name"]: Trained(**entry) for entry in _TABLES["trained"]}
CHIPS = {entry["name"]: Trained(**entry) for entry in _TABLES["chip"]}
PRICES = {entry["name"]: Price(**entry) for entry in _TABLES["price"]}


def growth(first: Trained, last: Trained, years: float = 1) -> float:
    """Return by what factor FLOPs grow in so many years, from one entry to another.

    >>> f"{growth(TRAINED['AlexNet'], TRAINED['GPT-6 Astra']):.2f}"
    '4.68'
    """
    return (last.flops / first.flops) ** (years / (last.year - first.year))
