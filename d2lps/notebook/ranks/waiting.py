"""``%%px`` before there are ranks, or after the kernel has been restarted: it says how to start them.

Neither torch nor ipyparallel is needed until somebody asks.
"""

import sys

from d2lps.messages import text


def stand_in() -> None:
    """In a notebook that has no ``%%px`` yet, have one that says what is missing. IPython has been imported."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is None or shell.find_cell_magic("px") is not None:
        return
    shell.register_magic_function(without_ranks, "line_cell", "px")


def without_ranks(line: str, cell: str | None = None) -> None:
    """What ``%px`` and ``%%px`` do where no ranks run."""
    from d2lps.carriers.rendezvous import NoRanks

    raise brief(NoRanks(text("ranks.none")))


def brief(error: BaseException) -> BaseException:
    """The error, shown by IPython as its sentence alone."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}".removesuffix(": ")]
    return error
