"""A bar of tqdm below a long loop."""

import os
from collections.abc import Iterable
from importlib import import_module
from typing import TypeVar

Round = TypeVar("Round")


def counted(rounds: Iterable[Round], of: int) -> Iterable[Round]:
    """Return ``rounds``, with a bar while they are run through if that takes over two seconds.

    Of several ranks only the first has a bar; ``D2LPS_PROGRESS=0`` turns it off.

    >>> list(counted("ab", of=2))
    ['a', 'b']
    """
    if os.environ.get("D2LPS_PROGRESS") == "0" or os.environ.get("RANK", "0") != "0":
        return rounds
    # A widget of a rank would need the rank's kernel: %%px can show only text.
    tqdm = import_module("tqdm.std" if "RANK" in os.environ else "tqdm.auto").tqdm
    return tqdm(rounds, total=of, delay=2, leave=False)
