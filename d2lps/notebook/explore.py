"""What if: a race with sliders. Each change shows the plans, their times and the race again.

A strategy is a function that takes the names of the devices, and perhaps ``chunks``, and returns a plan; so a reader's
own answer to an exercise can race, too.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import anywidget
import ipywidgets

from d2lps import units
from d2lps.algorithms import aggregate_at, sharded
from d2lps.algorithms.servers import require_chunks
from d2lps.messages import named, text
from d2lps.notebook.explore_page import Offer, can_race, page, told
from d2lps.plan import Plan
from d2lps.simulate import cost
from d2lps.topology import Topology, pcie_server
from d2lps.trace import Trace
from d2lps.units import Bandwidth, bandwidth, show_seconds, show_size, size
from d2lps.view.drawing import DrawingError
from d2lps.view.player import Player, watch

SIZES = ["1 MB", "4 MB", "16 MB", "40 MB", "160 MB", "640 MB", "2.5 GB"]
RATES = ["1 GB/s", "2 GB/s", "4 GB/s", "8 GB/s", "16 GB/s", "25 GB/s", "32 GB/s", "64 GB/s", "150 GB/s"]
CHUNKS = [1, 2, 4, 8, 16, 32]
SLOWER = [1, 2, 4, 10]
# What can be had where there is no kernel, if a slider has it: a few values of each, the most telling first.
FEW = {
    "gpus": (8, 2, 16),
    "slow": lambda pairs: [*pairs][1:2] + [*pairs][-1:],
    "chunks": (4, 2),
    "bandwidth": tuple(float(bandwidth(rate)) for rate in ("32 GB/s", "8 GB/s")),
    "nbytes": tuple(size(nbytes) for nbytes in ("640 MB", "16 MB")),
}


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
    <explore: GPU 0 60 ms, CPU 80 ms, shards 15 ms>
    >>> lab.controls["gpus"].value = 8
    >>> lab
    <explore: GPU 0 140 ms, CPU 160 ms, shards 17.5 ms>
    """
    return Exploration(strategies or USUAL, place, gpus, chunks, size(nbytes), units.bandwidth(bandwidth))


USUAL = {
    "GPU 0": lambda gpus, chunks: aggregate_at(gpus, gpus[0], chunks=chunks),
    "CPU": lambda gpus, chunks: aggregate_at(gpus, "cpu", chunks=chunks),
    "shards": lambda gpus, chunks: sharded(gpus, chunks=chunks),
}


class Names(anywidget.AnyWidget):
    """Names the sliders beside it for those who hear them: ipywidgets leaves their handles without a name."""

    _esm = """
    export default { render({ el }) {
      const name = () => el.parentElement?.querySelectorAll(".noUi-handle").forEach((handle) => {
        const label = handle.closest(".jupyter-widgets").querySelector(".widget-label");
        handle.setAttribute("aria-label", label.textContent);
      });
      const watcher = new MutationObserver(name);
      requestAnimationFrame(() => {
        name();
        if (el.parentElement) watcher.observe(el.parentElement, { childList: true, subtree: true });
      });
      return () => watcher.disconnect();
    } }
    """


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
        strategies: Mapping[str, Callable[..., Plan]],
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
        self._made: dict[tuple, dict] = {}  # what was shown of each position, for the page
        self.controls = self._make_controls(gpus, chunks, nbytes, rate)
        for control in self.controls.values():
            control.observe(lambda _: self.redraw(), "value")
            control.layout.margin = "2px 20px 2px 2px"  # a label does not touch what stands before it
        row = ipywidgets.HBox(list(self.controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        self._told, self._stage = ipywidgets.HTML(), ipywidgets.VBox()
        super().__init__([row, self._stage, self._told, Names()])
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
        self._follow_links(self._topology(*self._place_of(self._now())))
        self.traces, self.refused = self._run(self._now())
        self._race()
        self._told.value = told(self.traces, self.refused)

    def _now(self) -> dict[str, object]:
        return {name: control.value for name, control in self.controls.items()}

    def _place_of(self, values: dict) -> tuple[int, float]:
        return values["gpus"], values.get("bandwidth", 0.0)

    def _run(self, values: dict) -> tuple[dict[str, Trace], dict[str, str]]:
        """What each strategy takes where the sliders stand so, and why others have no plan there."""
        topology = self._topology(*self._place_of(values))
        if slow := values.get("slow"):
            by, unslowed = values["slower"], topology
            topology = self._once(("slow", topology, slow, by), lambda: slowed(unslowed, slow, by))
        names = _devices(topology)[: values["gpus"]]
        traces, refused = {}, {}
        for name, make in self._strategies.items():
            try:
                plan = make(names, chunks=values["chunks"]) if _takes_chunks(make) else make(names)
                traces[name] = cost.shared(plan, topology, values["nbytes"])
            except Exception as error:  # a reader's own function may raise anything; the others go on
                refused[name] = f"{type(error).__name__}: {error}"
        return traces, refused

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
        if can_race(self.traces):
            try:
                self.player = watch(*self.traces.values(), names=list(self.traces))
            except DrawingError as error:
                self.refused[""] = str(error)
        self._stage.children = [self.player] if self.player else []
        if old:
            old.close()

    def __repr__(self) -> str:
        told = [f"{named(name)} {show_seconds(trace.duration)}" for name, trace in self.traces.items()]
        return f"<explore: {', '.join(told + list(self.refused))}>"

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        """Where there is no kernel, some positions of the sliders, worked out in advance."""
        own = super()._repr_mimebundle_(**kwargs)
        return own | {"text/plain": repr(self), "text/html": page(self._offers(), self._run, self._made)}

    def _offers(self) -> list[Offer]:
        """For each slider where it stands, and a few other positions."""
        now, offers = self._now(), []
        for name, few in FEW.items():
            if name not in self.controls:
                continue
            options = dict(_options(self.controls[name]))
            values = few(options) if callable(few) else few
            others = [value for value in values if value in options and value != now[name]]
            labels = {value: label for value, label in options.items() if value in (now[name], *others)}
            if name == "slow":
                labels |= {pair: f"{label} ÷ {now['slower']}" for pair, label in labels.items() if pair}
            both = 2 if name == "slow" else 1  # one way out of a GPU, and the one that all share
            offers.append(Offer(name, self.controls[name].description, now, others, labels, both))
        return offers


def _options(control: ipywidgets.Widget) -> list[tuple[object, str]]:
    """What a slider can stand at, and how it says so."""
    if isinstance(control, ipywidgets.IntSlider):
        return [(value, str(value)) for value in range(control.min, control.max + 1)]
    return [(value, label) for label, value in control.options]


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
