"""The structure of the package: public names, rooms whose imports only go up, and forbidden imports."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx
import pytest

import course
import d2lps

HOME, COURSE = Path(d2lps.__file__).parent, Path(course.__file__).parent
PUBLIC = (
    "Event Here Link Plan PlanError Processes RankLost Reduction Send SharedMemory Topology Trace Transformer "
    "Update aggregate_at all_gather all_to_all bandwidth bidirectional_ring broadcast bruck bubbles calibrate "
    "check check_exercise cluster compare cost course_map d2l dgx1_v100 divide double_tree doubling draw edit "
    "explore fold gather halving halving_doubling hierarchical in_switch kvstore leaf_spine machines memory "
    "naive_ring nvswitch one_memory opening parallelize pcie_server predict predict_step progress rail_rings "
    "rail_wise rails ranks recorded recursive_doubling reduce reduce_scatter ring rings run scatter sharded "
    "solution source speak story table this_host together tradeoff tree two_rings watch wires"
).split()
PUBLIC_MODULES = {"cluster", "cost", "d2l", "kvstore"}

# From the ground up: a room imports only rooms that stand before it, and its own modules.
ROOMS = "messages units plan topology algorithms schedule profile trace simulate view scaling".split()
ROOMS += "carriers kvstore train measure cluster notebook course".split()  # course is not in the wheel
CORE = ROOMS[: ROOMS.index("carriers")]

MODULES = {
    ".".join(path.relative_to(home.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for home in (HOME, COURSE)
    for path in sorted(home.rglob("*.py"))
}


@cache
def python(code: str) -> str:
    """Return the output of a fresh Python."""
    root = {"PYTHONPATH": str(HOME.parent), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | root, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- public names


def test_the_public_names_are_these_and_sorted():
    assert d2lps.__all__ == sorted(PUBLIC) == PUBLIC
    assert set(PUBLIC) <= set(dir(d2lps))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'd2lps' has no attribute 'nothing'"):
        d2lps.nothing  # noqa: B018


def test_no_module_bears_the_name_of_a_public_function():
    assert {name.split(".")[1] for name in MODULES if name.startswith("d2lps.")} & set(PUBLIC) == {"cluster", "kvstore"}


EVERY_NAME_TWICE = """
import importlib, inspect, json, pkgutil, sys
def kinds():
    values = {name: getattr(d2lps, name) for name in d2lps.__all__}
    assert all(getattr(d2lps, name) is value for name, value in values.items())
    return values
for names_first in (True, False):
    import d2lps
    before = kinds() if names_first else None
    for module in pkgutil.walk_packages(d2lps.__path__, "d2lps."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    after = kinds()
    assert before is None or all(before[name] is value for name, value in after.items())
    print(json.dumps({name: "module" if inspect.ismodule(v) else "class" if inspect.isclass(v) else
                      "function" if inspect.isfunction(v) else type(v).__name__ for name, v in after.items()}))
    for name in [name for name in sys.modules if name.partition(".")[0] == "d2lps"]:  # torch and the like stay
        del sys.modules[name]
"""


def test_public_names_keep_their_kinds_after_all_imports():
    names_first, modules_first = map(json.loads, python(EVERY_NAME_TWICE).splitlines())
    assert (
        names_first
        == modules_first
        == {
            name: "module" if name in PUBLIC_MODULES else "class" if name[0].isupper() else "function"
            for name in PUBLIC
        }
    )


# Figures are drawn with the parts of the view, which no learner opens.
LESSONS = [path for path in sorted((HOME.parent / "chapters").glob("*/*.py")) if path.stem not in ("figures", "film")]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_chapters_import_only_public_names(path):
    """Return the names that a room exports in ``__all__``, and the modules ``units`` and ``messages``."""
    wrong = []
    for node in ast.walk(ast.parse(path.read_text("utf-8").replace("%%px", "# %%px"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "d2lps":
            module = importlib.import_module(node.module)
            handed_on = getattr(module, "__all__", dir(module) if node.module == "d2lps.units" else ())
            wrong += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in {*handed_on, *ROOMS}]
    assert wrong == []


# ---------------------------------------------------------------- rooms


def room(module: str) -> str | None:
    """Return the room of a module; None for ``d2lps`` itself and for ``python -m d2lps``."""
    package, _, inside = module.partition(".")
    return package if package == "course" else None if inside in ("", "__main__") else inside.split(".")[0]


def homes(module: str, name: str) -> str:
    """``from d2lps import units`` enters the module, ``from d2lps import run`` the room where it lives."""
    if f"{module}.{name}" in MODULES:
        return f"{module}.{name}"
    if module == "d2lps":
        return f"d2lps.{d2lps._HOME[name]}"
    return module


def test_every_module_has_its_room():
    assert {room(module) for module in MODULES} - {None} == set(ROOMS)


def test_the_contributing_page_lists_the_same_rooms_in_the_same_order():
    table = (HOME.parent / "CONTRIBUTING.md").read_text("utf-8").split("| room |")[1].split("\n\n")[0]
    cells = " ".join(line.split("|")[1] for line in table.splitlines()[2:])
    listed = re.findall(r"`(\w+)(?:\.py|/)`", cells)
    assert listed == ROOMS


def written(tree: ast.Module):
    """Return all imports of d2lps, also those inside functions and for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (homes(node.module, alias.name) for alias in node.names)


TREES = {module: ast.parse(path.read_text("utf-8")) for module, path in MODULES.items()}
IMPORTS = {
    module: {name for name in written(tree) if name.startswith(("d2lps.", "course."))} - {module}
    for module, tree in TREES.items()
}


@pytest.mark.parametrize("module", [m for m in MODULES if room(m)])
def test_imports_only_go_up(module):
    allowed = set(ROOMS[: ROOMS.index(room(module)) + 1])
    assert [name for name in IMPORTS[module] if room(name) not in allowed] == []


def test_no_modules_import_each_other_in_a_circle():
    circles = networkx.strongly_connected_components(networkx.DiGraph(IMPORTS))
    assert [sorted(circle) for circle in circles if len(circle) > 1] == []


@pytest.mark.parametrize("module", [m for m in MODULES])
def test_no_module_is_over_700_lines(module):
    assert len(MODULES[module].read_text("utf-8").splitlines()) <= 700


# ---------------------------------------------------------------- the core is light

USE_THE_CORE = """
import json, sys
{before}
import d2lps
only = sorted(m for m in sys.modules if m.startswith("d2lps"))
gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
plan = d2lps.sharded(gpus)
d2lps.check(plan)
d2lps.speak("en")
table = str(d2lps.aggregate_at(["gpu0", "gpu1"], "cpu", chunks=2, update=("sgd", {{"lr": 0.1}})))
planned = len(sys.modules)
trace = d2lps.cost.shared(plan, d2lps.pcie_server(gpus=4), "160 MB")
again = d2lps.Trace.from_json(trace.to_json())
assert again == trace and d2lps.Plan.from_json(plan.to_json()) == plan
print(json.dumps({{"only": only, "table": table, "duration": trace.duration, "planned": planned,
                  "modules": sorted(name for name, module in sys.modules.items() if module is not None)}}))
"""


def test_importing_d2lps_imports_nothing_else_of_it():
    assert json.loads(python(USE_THE_CORE.format(before="")))["only"] == ["d2lps"]


def test_the_core_loads_neither_torch_nor_widgets_nor_anything_else_it_does_not_need():
    used = json.loads(python(USE_THE_CORE.format(before="")))
    outside = {name.split(".")[0] for name in used["modules"]}
    forbidden = "torch mxnet d2l matplotlib numpy pandas scipy sklearn IPython ipywidgets anywidget traitlets nbformat"
    assert outside & {*forbidden.split(), "jupytext", "sphinx"} == set()
    assert {room(name) for name in used["modules"] if name.startswith("d2lps.")} <= set(CORE)


def test_a_plan_is_made_checked_and_printed_with_few_modules():
    bare = int(python("import sys, json; print(len(sys.modules))"))
    assert json.loads(python(USE_THE_CORE.format(before="")))["planned"] - bare < 120


def test_the_core_works_where_torch_cannot_be_imported():
    absent = 'sys.modules["torch"] = sys.modules["numpy"] = sys.modules["IPython"] = None'
    used = json.loads(python(USE_THE_CORE.format(before=absent)))
    assert used["duration"] == 0.015
    assert used["table"].splitlines()[1] == "shares: g1 = g2 = 1/2"
    assert used["table"].splitlines()[2] == "step 1   gpu0,gpu1→cpu +g1   cpu sgd(g1, lr=0.1)"


@pytest.mark.parametrize("name, needed", [("run", "torch"), ("Here", "torch"), ("explore", "ipywidgets")])
def test_a_missing_package_is_named_with_its_installation(name, needed):
    code = f"import sys; sys.modules[{needed!r}] = None; import d2lps; d2lps.{name}"
    errors = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stderr
    assert f"ImportError: d2lps.{name} needs {needed}, which the core does not: pip install -e '.[course]'" in errors
