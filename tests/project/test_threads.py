"""Objects that threads may share cache nothing on first access: in two threads at once, that would crash.

In CPython 3.11 the first access to ``obj.__dict__`` creates a dict. This may start a garbage collection, which may let
another thread run. If that thread accesses ``__dict__`` too, two dicts share one array of values, and when one of them
is destroyed, the other reads freed memory. ``functools.cached_property`` accesses ``__dict__`` at its first use.
"""

import json
import pkgutil
import subprocess
import sys
from functools import cached_property
from importlib import import_module
from inspect import isclass

import pytest

import d2lps

OF_ONE_THREAD = ("d2lps.notebook",)  # notebooks, their books and graders

SHARED = {
    "Placement": "from d2lps.algorithms.placement import Placement; make = lambda: Placement(1, virtual=4)",
    "Plan": "from d2lps import ring; make = lambda: ring(['gpu0', 'gpu1'])",
    "Topology": "from d2lps import pcie_server; make = lambda: pcie_server(gpus=2)",
    "Trace": "from d2lps import cost, pcie_server, ring; PLAN = ring(['gpu0', 'gpu1'])\n"
    "make = lambda: cost.shared(PLAN, pcie_server(gpus=2), 1000)",
    "Predicted": "from d2lps import cost, nvswitch, ring; PLAN = ring([f'gpu{i}' for i in range(65)])\n"
    "make = lambda: cost.shared(PLAN, nvswitch(gpus=65), 1000).events",
    "StepCost": "from d2lps import cost, nvswitch, ring; PLAN = ring([f'gpu{i}' for i in range(65)])\n"
    "make = lambda: cost.shared(PLAN, nvswitch(gpus=65), 1000).events.costs[0]",
    "Scene": "from d2lps import cost, pcie_server, ring; from d2lps.view.drawing.scene import Scene\n"
    "TRACE = cost.shared(ring(['gpu0', 'gpu1']), pcie_server(gpus=2), 1000); make = lambda: Scene(TRACE)",
}

# One thread asks for each property for the first time; if that makes a dict, another one looks while it is being made.
# It is done in a process for each object, which is forked off one that has imported Python's own library.
PROGRAM = """
import gc, json, os, sys, threading
from functools import cached_property

for what, made in json.loads(sys.argv[1]).items():
    if not (child := os.fork()):
        break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, 1), what
else:
    os._exit(0)
exec(made)

class Closing:  # stands for a socket, a file, a mapping: its end lets another thread go on
    def __init__(self): self.cycle = self
    def __del__(self): inside.set(); done.wait(5)

def other():
    inside.wait(5)
    found.append(shared.__dict__)
    done.set()

own = {name: of for each in type(make()).__mro__ for name, of in vars(each).items()}
for name in (name for name, of in own.items() if isinstance(of, property | cached_property)):
    shared, found, inside, done = make(), [], threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    gc.collect(); gc.disable(); Closing(); full = [{} for _ in range(300)]  # none is left over for the next dict
    gc.set_threshold(1, 10**6, 10**6); gc.enable()
    getattr(shared, name)
    gc.disable(); inside.set(); thread.join()
    if found[0] is not shared.__dict__:
        print(f"{what}.{name}", flush=True)
        os._exit(1)  # at once: the next collection would crash
os._exit(0)
"""


def lazy_classes() -> list[str]:
    """Return the classes of the core with an attribute that is made on first access."""
    modules = [name for _, name, _ in pkgutil.walk_packages(d2lps.__path__, "d2lps.")]
    core = [name for name in modules if not name.startswith(OF_ONE_THREAD) and not name.endswith("__main__")]
    classes = {of for name in core for of in vars(import_module(name)).values() if isclass(of)}
    ours = {of for of in classes if of.__module__.startswith("d2lps.") and not of.__module__.startswith(OF_ONE_THREAD)}
    return sorted(of.__qualname__ for of in ours if any(isinstance(own, cached_property) for own in vars(of).values()))


def test_no_class_of_the_core_makes_an_attribute_when_it_is_asked_for():
    assert lazy_classes() == []


def broken(makes: dict[str, str]) -> list[str]:
    """Return the first property of each object that two threads may not ask for at once."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(makes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_two_threads_may_be_the_first_to_use_it():
    assert broken(SHARED) == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later versions of Python make one dict")
def test_a_cached_property_would_be_noticed():
    make = "import functools\nclass Lazy:\n    ring = functools.cached_property(lambda self: 1)\nmake = Lazy"
    assert broken({"Lazy": make}) == ["Lazy.ring"]
