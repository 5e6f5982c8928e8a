"""Names that moved: what notebooks of version 0.1 import still answers, and says where it went."""

import importlib
import sys

import pytest

import d2lps

LESSONS_OF_0_1 = """
from d2lps.borrowed import d2l
from d2lps.showing import table
from d2lps import concise, train_by_store
from d2lps.train_by_store import each, work, in_turn
from d2lps.kvstore.placement import Placement
from d2lps.kvstore.server.rounds import Table as ServerTable
from d2lps.kvstore.wire import Broken, Channel, Entry, Op, raw
""".strip()


@pytest.mark.parametrize("line", LESSONS_OF_0_1.splitlines())
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_a_notebook_of_version_0_1_imports_still_answers(line):
    names: dict = {}
    exec(line, names)
    assert len(names) > 1


@pytest.mark.parametrize("old", sorted(d2lps._MOVED))
def test_a_module_that_moved_says_where_it_went(old):
    sys.modules.pop(f"d2lps.{old}", None)
    new = d2lps._MOVED[old][0]
    with pytest.warns(FutureWarning, match=f"d2lps.{old} is d2lps.{new} now"):
        importlib.import_module(f"d2lps.{old}")
    importlib.import_module(f"d2lps.{new}")


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="No module named 'd2lps.nothing'"):
        importlib.import_module("d2lps.nothing")
    with pytest.raises(AttributeError):
        _ = d2lps.borrowed.nothing
