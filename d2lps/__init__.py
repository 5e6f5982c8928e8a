"""d2lps: how many devices agree on one gradient. A plan is written, checked, costed, run and watched.

>>> import d2lps
>>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
>>> plan = d2lps.sharded(gpus)
>>> d2lps.cost.shared(plan, d2lps.pcie_server(gpus=4, bandwidth="16 GB/s"), "160 MB").duration
0.015

The public names are attributes of this module, resolved on first use, so that the core loads in an
instant and without torch. No module bears the name of a public function.
"""

from importlib import import_module

_HOME = {
    "Event": "trace",
    "Here": "carriers.here",
    "Link": "topology",
    "Plan": "plan",
    "PlanError": "steps",
    "Processes": "carriers.processes",
    "RankLost": "carriers.meeting",
    "Reduction": "reductions",
    "Send": "steps",
    "SharedMemory": "carriers.shared_memory",
    "Topology": "topology",
    "Trace": "trace",
    "Update": "steps",
    "aggregate_at": "algorithms",
    "all_gather": "algorithms",
    "bidirectional_ring": "algorithms",
    "calibrate": "calibration",
    "check": "steps",
    "check_exercise": "checks",
    "compare": "comparing",
    "cost": "",
    "dgx1_v100": "hosts",
    "double_tree": "algorithms",
    "draw": "drawing",
    "halving_doubling": "algorithms",
    "kvstore": "",
    "naive_ring": "algorithms",
    "nvswitch": "hosts",
    "one_memory": "hosts",
    "pcie_server": "hosts",
    "ranks": "engines.notebook",
    "reduce_scatter": "algorithms",
    "ring": "algorithms",
    "rings": "cycles",
    "run": "execute",
    "sharded": "algorithms",
    "solution": "checks",
    "source": "showing",
    "speak": "text",
    "this_host": "this_machine",
    "together": "algorithms",
    "tree": "algorithms",
    "two_rings": "algorithms",
    "watch": "player",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'd2lps' has no attribute {name!r}")
    home = _HOME[name]
    try:
        value = getattr(import_module(f"d2lps.{home}"), name) if home else import_module(f"d2lps.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "d2lps":
            raise
        remedy = "which the core does not: pip install -e '.[course]'"
        raise ImportError(f"d2lps.{name} needs {error.name}, {remedy}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
