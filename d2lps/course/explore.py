"""What if: a race with sliders. Each change shows the plans, their times and the race again.

A strategy is a function that takes the names of the devices, and perhaps ``chunks``, and returns a plan; so a reader's
own answer to an exercise can race, too.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from html import escape

import ipywidgets

from d2lps import units
from d2lps.algorithms import aggregate_at, sharded
from d2lps.algorithms.servers import require_chunks
from d2lps.course.reveal import Bar, chart
from d2lps.messages import html_language, text
from d2lps.plan import Plan
from d2lps.simulate import cost
from d2lps.topology import Topology, pcie_server
from d2lps.trace import Trace
from d2lps.units import Bandwidth, bandwidth, show_seconds, show_size, size
from d2lps.view.drawing import DrawingError
from d2lps.view.player import Player, watch
from d2lps.view.tables import plan_table

SIZES = ["1 MB", "4 MB", "16 MB", "40 MB", "160 MB", "640 MB", "2.5 GB"]
RATES = ["1 GB/s", "2 GB/s", "4 GB/s", "8 GB/s", "16 GB/s", "25 GB/s", "32 GB/s", "64 GB/s", "150 GB/s"]
CHUNKS = [1, 2, 4, 8, 16, 32]
SLOWER = [1, 2, 4, 10]
# Pictures of more messages than this, in all, take longer to make than a reader waits for: numbers alone then.
MOST_MESSAGES = 600


def explore(
    strategies: "Mapping[str, Callable[..., Plan]] | None" = None,
    place: "Callable[..., Topology]" = pcie_server,
    gpus: int = 4,
    chunks: int = 1,
    nbytes: "int | str" = "160 MB",
    bandwidth: str = "16 GB/s",
) -> "Exploration":
    """Sliders for a race: how many devices, chunks, bytes, how wide the links, and one link that is slower.

    Parameters
    ----------
    strategies : mapping of str to function, optional
        Name → what makes the plan, of the names of the devices, and of ``chunks`` where it takes them. If left out: on
        GPU 0, on the CPU, and in shards.
    place : function
        Makes the topology, of the number of devices, and of a bandwidth where it takes a second argument.
    gpus : int
        How many devices there are to begin with, 2 to 16.
    chunks : int
        Into how many chunks strategies cut that can.
    nbytes : int or str
        The gradient's size.
    bandwidth : str
        Of each link, one way.

    Returns
    -------
    Exploration
        A notebook shows it, with its sliders.

    Raises
    ------
    TopologyError, PlanError, UnitError
        For a number of devices, a size or a bandwidth that cannot be.

    Examples
    --------
    >>> lab = explore(gpus=4)
    >>> lab
    <explore: GPU 0 60 ms, CPU 80 ms, g1…g4 15 ms>
    >>> lab.controls["gpus"].value = 8
    >>> lab
    <explore: GPU 0 140 ms, CPU 160 ms, g1…g8 17.5 ms>
    """
    return Exploration(strategies or _usual, place, gpus, chunks, size(nbytes), units.bandwidth(bandwidth))


def _usual(gpus: list[str]) -> dict[str, Callable[..., Plan]]:
    return {
        "GPU 0": lambda gpus, chunks: aggregate_at(gpus, gpus[0], chunks=chunks),
        "CPU": lambda gpus, chunks: aggregate_at(gpus, "cpu", chunks=chunks),
        f"g1…g{len(gpus)}": lambda gpus, chunks: sharded(gpus, chunks=chunks),
    }


class Exploration(ipywidgets.VBox):
    """What :func:`explore` gives.

    Attributes
    ----------
    controls : dict of str to widget
        The sliders, by what they set.
    traces : dict of str to Trace
        What is shown, by strategy.
    refused : dict of str to str
        The sentences of strategies that have no plan here.
    player : Player or None
        The race; None where there is none, or it has too many messages.
    """

    def __init__(
        self,
        strategies: "Mapping[str, Callable[..., Plan]] | Callable",
        place: Callable[..., Topology],
        gpus: int,
        chunks: int,
        nbytes: int,
        rate: Bandwidth,
    ):
        self._strategies, self._place, self._places = strategies, place, {}
        self.traces: dict[str, Trace] = {}
        self.refused: dict[str, str] = {}
        self.player: Player | None = None
        self.controls = self._make_controls(gpus, chunks, nbytes, rate)
        for control in self.controls.values():
            control.observe(lambda _: self.redraw(), "value")
        row = ipywidgets.HBox(list(self.controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        self._told, self._stage = ipywidgets.HTML(), ipywidgets.VBox()
        super().__init__([row, self._stage, self._told])
        self.redraw()

    def _make_controls(self, gpus: int, chunks: int, nbytes: int, rate: Bandwidth) -> dict[str, ipywidgets.Widget]:
        links = _pairs(self._topology(gpus, float(rate)))  # refuses a number of devices that cannot be
        look = {"style": {"description_width": "initial"}, "continuous_update": False}

        def among(options: Iterable[tuple[str, float]], value: float, label: str, **more) -> ipywidgets.Widget:
            every = {number: shown for shown, number in options}
            every.setdefault(value, more.pop("shown", str(value)))
            pairs = [(every[number], number) for number in sorted(every)]
            return ipywidgets.SelectionSlider(options=pairs, value=value, description=label, **look)

        made = {
            "gpus": ipywidgets.IntSlider(
                gpus, min(2, gpus), max(16, gpus), description=text("explore.says-gpus"), **look
            ),
            "chunks": among([(str(c), c) for c in CHUNKS], require_chunks(chunks), text("explore.says-chunks")),
            "nbytes": among(
                [(s, size(s)) for s in SIZES], nbytes, text("explore.says-nbytes"), shown=show_size(nbytes)
            ),
        }
        if _takes(self._place) > 1:
            rates = [(r, float(bandwidth(r))) for r in RATES]
            made["bandwidth"] = among(rates, float(rate), text("explore.says-bandwidth"), shown=str(rate))
        if links:
            nothing = [(text("explore.says-none"), ())]
            options = nothing + [(f"{a} ↔ {b}", (a, b)) for a, b in links]
            made["slow"] = ipywidgets.Dropdown(
                options=options, value=(), description=text("explore.says-slow"), style=look["style"]
            )
            made["slower"] = among([(f"÷ {by}", by) for by in SLOWER], 2, text("explore.says-slower"))
        return made

    def _topology(self, count: int, rate: float) -> Topology:
        arguments = (count, Bandwidth(rate)) if _takes(self._place) > 1 else (count,)
        return self._once(arguments, lambda: self._place(*arguments))

    def _once(self, made_of: tuple, make: Callable[[], Topology]) -> Topology:
        """A topology keeps the ways that it has found, so the same one is not made twice."""
        if made_of not in self._places:
            self._places[made_of] = make()
        return self._places[made_of]

    def set(self, **values: object) -> None:
        """Move several sliders at once.

        Parameters
        ----------
        **values
            What :attr:`controls` has, and its value.
        """
        for name, value in values.items():
            self.controls[name].value = value

    def redraw(self) -> None:
        """Work everything out anew from where the sliders stand."""
        now = {name: control.value for name, control in self.controls.items()}
        topology = self._topology(now["gpus"], now.get("bandwidth", 0.0))
        self._follow_links(topology)
        slow = self.controls["slow"].value if "slow" in self.controls else ()
        if slow:
            unslowed = topology
            topology = self._once(
                ("slow", topology, slow, now["slower"]), lambda: slowed(unslowed, slow, now["slower"])
            )
        names = _devices(topology)[: now["gpus"]]
        strategies = self._strategies(names) if callable(self._strategies) else self._strategies
        self.traces, self.refused = {}, {}
        for name, make in strategies.items():
            try:
                plan = make(names, chunks=now["chunks"]) if _takes_chunks(make) else make(names)
                self.traces[name] = cost.shared(plan, topology, now["nbytes"])
            except Exception as error:  # a reader's own function may raise anything; the others go on
                self.refused[name] = f"{type(error).__name__}: {error}"
        self._race()
        self._told.value = self._page()

    def _follow_links(self, topology: Topology) -> None:
        """The list of links is that of the topology: other devices, other links."""
        if "slow" not in self.controls:
            return
        slow, pairs = self.controls["slow"], _pairs(topology)
        if [pair for _, pair in slow.options[1:]] != pairs:
            kept = slow.value if slow.value in pairs else ()
            slow.unobserve_all("value")
            slow.options = [slow.options[0], *((f"{a} ↔ {b}", (a, b)) for a, b in pairs)]
            slow.value = kept
            slow.observe(lambda _: self.redraw(), "value")

    def _race(self) -> None:
        old, self.player = self.player, None
        if self.traces and sum(len(trace.events) for trace in self.traces.values()) <= MOST_MESSAGES:
            try:
                self.player = watch(*self.traces.values(), names=list(self.traces))
            except DrawingError as error:
                self.refused[""] = str(error)
        self._stage.children = [self.player] if self.player else []
        if old:
            old.close()

    def _page(self) -> str:
        """Times as bars, refusals, and the plans, folded."""
        bars = {
            name: [Bar("model", text("table.shared"), 1e3 * trace.duration, "ms")]
            for name, trace in self.traces.items()
        }
        parts = [chart(bars)] if bars else []
        if self.traces and not self.player:
            parts.append(f"<p>{escape(text('explore.too-many', most=MOST_MESSAGES))}</p>")
        parts += [f"<p>✗ {escape(f'{name}: {why}'.removeprefix(': '))}</p>" for name, why in self.refused.items()]
        for name, trace in self.traces.items():
            summary = escape(text("explore.says-plan", name=name))
            parts.append(f"<details><summary>{summary}</summary>{plan_table(trace.plan)}</details>")
        return f'<div class="d2lps-explore" lang="{html_language()}">{"".join(parts)}</div>'

    def __repr__(self) -> str:
        told = [f"{name} {show_seconds(trace.duration)}" for name, trace in self.traces.items()]
        return f"<explore: {', '.join(told + list(self.refused))}>"

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        """Where there is no kernel, the race that the sliders stood at last."""
        own = super()._repr_mimebundle_(**kwargs)
        still = self.player._repr_html_() if self.player else ""
        return own | {"text/plain": repr(self), "text/html": still + self._told.value}


def slowed(topology: Topology, pair: tuple[str, str], by: float) -> Topology:
    """The same nodes, with the link between two of them slower by a factor, each way."""
    links = [
        replace(link, bandwidth=Bandwidth(link.bandwidth / by)) if {link.src, link.dst} == set(pair) else link
        for link in topology.links
    ]
    return Topology(topology.name, topology.kinds, links, limits=topology.limits)


def _pairs(topology: Topology) -> list[tuple[str, str]]:
    """The links, one for both ways."""
    return list(dict.fromkeys(tuple(sorted((link.src, link.dst))) for link in topology.links))


def _devices(topology: Topology) -> list[str]:
    """The nodes that hold gradients: the GPUs, or, where there are none, all that do not forward."""
    gpus = [node for node, kind in topology.kinds.items() if kind == "gpu"]
    return gpus or [node for node, kind in topology.kinds.items() if kind not in ("switch", "memory")]


def _takes(function: Callable) -> int:
    """How many arguments it takes in their places."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds for each in inspect.signature(function).parameters.values())


def _takes_chunks(function: Callable) -> bool:
    return "chunks" in inspect.signature(function).parameters
