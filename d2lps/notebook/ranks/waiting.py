"""The ``%%px`` magic before there are ranks, or after a restart of the kernel: it says how to start them.

It needs neither torch nor ipyparallel until it is called.
"""

import sys

from d2lps.messages import text


def stand_in() -> None:
    """Register the magic in a notebook that has no ``%%px`` yet. IPython must have been imported."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is None or shell.find_cell_magic("px") is not None:
        return
    shell.register_magic_function(without_ranks, "line_cell", "px")


def without_ranks(line: str, cell: str | None = None) -> None:
    """Raise NoRanks for ``%px`` and ``%%px``."""
    from d2lps.carriers.rendezvous import NoRanks

    raise brief(NoRanks(text("ranks.none")))


def brief(error: BaseException) -> BaseException:
    """Return the error, which IPython then shows without a traceback."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}".removesuffix(": ")]
    return error
