"""Run, cost and watch the ways in which many devices agree on one gradient.

>>> import d2lps
>>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
>>> plan = d2lps.sharded(gpus)
>>> d2lps.cost.shared(plan, d2lps.pcie_server(gpus=4, bandwidth="16 GB/s"), "160 MB").duration
0.015

An algorithm writes a ``Plan`` (who sends which key to whom, step by step). ``check`` proves it, ``cost`` predicts its
``Trace`` and ``run`` measures one; ``draw``, ``watch`` and ``table`` show a trace. Start with ``plan/plan.py``, then
read ``algorithms/rings.py`` and ``simulate/cost.py``. ``units.py`` decides how bytes, seconds and rates are read and
printed, ``messages/`` holds every sentence in three languages, ``view/`` decides what a picture looks like.

Every public name is an attribute of this module and is imported on first use, so the core loads in an instant and
without torch. ``_HOME`` below says in which module each name lives; no module has the name of a public function.
"""

import sys
from importlib import import_module

__version__ = "1.0.0"

_HOME = {
    "Event": "trace",
    "Here": "carriers.here",
    "Link": "topology",
    "Plan": "plan",
    "PlanError": "plan",
    "Processes": "carriers.processes",
    "RankLost": "carriers.rendezvous",
    "Reduction": "carriers.reductions",
    "Send": "plan",
    "SharedMemory": "carriers.shared_memory",
    "Topology": "topology",
    "Trace": "trace",
    "Transformer": "scaling",
    "Update": "plan",
    "aggregate_at": "algorithms",
    "all_gather": "algorithms",
    "all_to_all": "algorithms",
    "bandwidth": "simulate.busbw",
    "bidirectional_ring": "algorithms",
    "broadcast": "algorithms",
    "bruck": "algorithms",
    "calibrate": "measure.calibration",
    "check": "plan",
    "bubbles": "notebook.hand.bubbles",
    "check_exercise": "notebook.grading",
    "cluster": "",
    "compare": "measure.comparing",
    "cost": "simulate",
    "course_map": "notebook.progress",
    "d2l": "notebook.d2l_compat",
    "dgx1_v100": "topology",
    "divide": "notebook.divide",
    "double_tree": "algorithms",
    "doubling": "algorithms",
    "draw": "view.drawing",
    "edit": "notebook.schedule_table",
    "explore": "notebook.explore",
    "fold": "simulate.fold",
    "gather": "algorithms",
    "halving": "algorithms",
    "halving_doubling": "algorithms",
    "hierarchical": "algorithms",
    "in_switch": "algorithms",
    "kvstore": "",
    "leaf_spine": "topology",
    "machines": "topology",
    "memory": "scaling",
    "naive_ring": "algorithms",
    "nvswitch": "topology",
    "one_memory": "topology",
    "opening": "notebook.progress",
    "parallelize": "scaling",
    "pcie_server": "topology",
    "predict": "notebook.predict",
    "predict_step": "scaling",
    "progress": "notebook.progress",
    "rail_rings": "algorithms",
    "rail_wise": "algorithms",
    "rails": "topology",
    "ranks": "notebook.ranks.notebook",
    "recorded": "notebook.recorded",
    "recursive_doubling": "algorithms",
    "reduce": "algorithms",
    "reduce_scatter": "algorithms",
    "ring": "algorithms",
    "rings": "topology",
    "run": "carriers.execute",
    "scatter": "algorithms",
    "sharded": "algorithms",
    "solution": "notebook.grading",
    "source": "view.tables",
    "speak": "messages",
    "story": "notebook.hand.story",
    "table": "view.tables",
    "this_host": "topology",
    "together": "algorithms",
    "tradeoff": "notebook.tradeoff",
    "tree": "algorithms",
    "two_rings": "algorithms",
    "watch": "view.player",
    "wires": "notebook.hand.wires",
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


if sys.modules.get("IPython"):
    import_module("d2lps.notebook.ranks.rank").stand_in()
    import_module("d2lps.notebook.shown").register()
