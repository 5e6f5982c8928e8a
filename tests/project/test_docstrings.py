"""Public docstrings describe parameters, results and errors in Google's sections, and match the signatures."""

import inspect
from enum import EnumMeta
from importlib import import_module

import pytest

import d2lps
from course.site import docstrings

# Rooms whose __init__ hands names on: these are public, too.
HANDED_ON = ("plan", "topology", "algorithms", "simulate", "scaling", "kvstore", "train", "measure")
# Names that need several processes, a browser or a notebook show their use without a prompt.
NO_PROMPT = {"Processes", "RankLost", "SharedMemory", "calibrate", "compare", "ranks", "watch", "this_host"}


def public() -> dict[str, object]:
    """Return every public function and class by its full name, with the public methods and properties of each class."""
    homes = {name: getattr(d2lps, name) for name in d2lps.__all__}
    for room in HANDED_ON:
        module = import_module(f"d2lps.{room}")
        homes |= {f"{room}.{name}": getattr(module, name) for name in module.__all__}
    kinds = (type, type(public))
    objects = {name: each for name, each in homes.items() if isinstance(each, kinds) and not isinstance(each, EnumMeta)}
    methods = {
        f"{name}.{own}": member.__func__ if isinstance(member, classmethod | staticmethod) else member
        for name, each in objects.items()
        if isinstance(each, type)
        for own, member in vars(each).items()
        if not own.startswith("_") and isinstance(member, classmethod | staticmethod | property | type(public))
    }
    # What is handed on in two places is looked at once, by its first name.
    once = {id(each): (name, each) for name, each in reversed((objects | methods).items())}
    return dict(once.values())


PUBLIC = public()


def parameters(of: object) -> list[str]:
    if isinstance(of, property):
        return []
    try:
        taken = inspect.signature(of).parameters
    except ValueError:  # an error class takes what Exception takes
        return []
    named = [name for name, its in taken.items() if its.kind not in (its.VAR_POSITIONAL, its.VAR_KEYWORD)]
    return [name for name in named if name not in ("self", "cls") and not name.startswith("_")]


def test_there_is_something_to_look_at():
    assert {"ring", "Plan", "Plan.to_json", "kvstore.create", "Trace.duration"} <= set(PUBLIC)
    assert len(PUBLIC) > 150


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_it_begins_with_one_sentence(name):
    first = (inspect.getdoc(PUBLIC[name]) or "").split("\n\n")[0]
    assert first and first[0].isprintable() and first.rstrip()[-1] in ".:", first


@pytest.mark.parametrize("name", sorted(name for name, each in PUBLIC.items() if parameters(each)))
def test_each_parameter_is_described(name):
    missing = set(parameters(PUBLIC[name])) - docstrings.names(inspect.getdoc(PUBLIC[name]) or "")
    assert not missing, f"not described: {sorted(missing)}"


@pytest.mark.parametrize("name", sorted(n for n, of in PUBLIC.items() if inspect.isfunction(of) and parameters(of)))
def test_what_is_returned_is_described(name):
    gives = inspect.signature(PUBLIC[name]).return_annotation
    if gives not in (None, "None", inspect.Signature.empty):
        kinds = {section.kind.value for section in docstrings.sections(inspect.getdoc(PUBLIC[name]))}
        assert {"returns", "yields"} & kinds, f"it returns {gives}"


@pytest.mark.parametrize("name", sorted(set(d2lps.__all__) & set(PUBLIC) - NO_PROMPT))
def test_it_shows_an_example_that_runs(name):
    assert ">>> " in inspect.getdoc(PUBLIC[name])
