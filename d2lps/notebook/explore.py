"""Races with sliders: each change shows the plans, their times and the race again.

A strategy is a function that takes the names of the devices, and perhaps ``chunks``, and returns a plan; so a reader's
answer to an exercise can race, too. ``FirstRace`` has sliders for GPUs, bytes and links.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from html import escape

import anywidget
import ipywidgets

from d2lps import units
from d2lps.algorithms import aggregate_at, ring, sharded
from d2lps.algorithms.servers import require_chunks
from d2lps.messages import html_language, named, text
from d2lps.notebook.explore_page import Offer, bet, can_race, dials, page, pictured, raced, report
from d2lps.plan import Plan
from d2lps.simulate import cost
from d2lps.topology import Topology, pcie_server
from d2lps.trace import Trace
from d2lps.units import Bandwidth, bandwidth, show_seconds, show_size, size
from d2lps.view.drawing import DrawingError
from d2lps.view.player import Player, has_front_end, staged, watch, without_view

SIZES = ["1 MB", "4 MB", "16 MB", "40 MB", "160 MB", "640 MB", "2.5 GB"]
RATES = ["1 GB/s", "2 GB/s", "4 GB/s", "8 GB/s", "16 GB/s", "25 GB/s", "32 GB/s", "64 GB/s", "150 GB/s"]
CHUNKS = [1, 2, 4, 8, 16, 32]
SLOWER = [1, 2, 4, 10]
# The values that a page without a kernel can offer, if a slider has them, the most instructive first.
FEW = {
    "gpus": (8, 2, 16),
    "slow": lambda pairs: [*pairs][1:2] + [*pairs][-1:],
    "chunks": (4, 2),
    "bandwidth": tuple(float(bandwidth(rate)) for rate in ("32 GB/s", "8 GB/s")),
    "nbytes": tuple(size(nbytes) for nbytes in ("640 MB", "16 MB")),
}

# Of the race with which the course begins.
WAYS = {"GPU 0": lambda gpus: aggregate_at(gpus, gpus[0]), "shards": lambda gpus: sharded(gpus), "ring": ring}
RATE, NVLINK, LATENCY = "12.5 GB/s", "50 GB/s", "0.2 us"
LINKS: dict[str, Callable[[int], Topology]] = {
    "one-switch": lambda gpus: pcie_server(gpus, RATE, LATENCY),
    "two-switches": lambda gpus: pcie_server(gpus, RATE, LATENCY, switches=2),
    "nvlink-ring": lambda gpus: pcie_server(gpus, RATE, LATENCY, nvlink=NVLINK),
}
BYTES = tuple(map(size, ("40 kB", "1 MB", "200 MB", "1 GB")))
SCENES: dict[tuple, tuple] = {}
ALIKE = 1.005  # times that differ by less are one result


def explore(
    strategies: "Mapping[str, Callable[..., Plan]] | None" = None,
    place: "Callable[..., Topology]" = pcie_server,
    gpus: int = 4,
    chunks: int = 1,
    nbytes: "int | str" = "160 MB",
    bandwidth: str = "16 GB/s",
) -> "Exploration":
    """Make a race with sliders for the number of devices, chunks and bytes, the bandwidth, and one slower link.

    Args:
        strategies: Name → function that makes the plan from the names of the devices, and from ``chunks`` if it has
            that parameter. If left out: on GPU 0, on the CPU, and in shards.
        place: Makes the topology from the number of devices, and from a bandwidth if it takes a second argument.
        gpus: The number of devices at the start, 2 to 16.
        chunks: The number of chunks, for strategies that cut.
        nbytes: The gradient's size.
        bandwidth: The bandwidth of each link, one way.

    Returns:
        A notebook shows it, with its sliders.

    Raises:
        TopologyError, PlanError, UnitError: For an invalid number of devices, size or bandwidth.

    Example:
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
    """Labels for screen readers on the sliders beside it, whose handles have none in ipywidgets."""

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
    """The result of :func:`explore`.

    Attributes:
        controls (dict of str to widget): The sliders, by the name of their setting.
        traces (dict of str to Trace): The traces shown, by strategy.
        refused (dict of str to str): The errors of strategies that have no plan here.
        player (Player or None): The race; None if there is none, or it has too many messages.
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
        self._strategies, self._place = strategies, place
        self._places: dict = {}
        self.traces: dict[str, Trace] = {}
        self.refused: dict[str, str] = {}
        self.player: Player | None = None
        self._shown: dict[tuple, dict] = {}  # the content of each position, for the page
        self.controls = self._make_controls(gpus, chunks, nbytes, rate)
        for control in self.controls.values():
            control.observe(lambda _: self.redraw(), "value")
            control.layout.margin = "2px 20px 2px 2px"  # keeps labels apart from the control before them
        row = ipywidgets.HBox(list(self.controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        self._report, self._stage = ipywidgets.HTML(), ipywidgets.VBox()
        super().__init__([row, self._stage, self._report, Names()])
        self.redraw()

    def _make_controls(self, gpus: int, chunks: int, nbytes: int, rate: Bandwidth) -> dict[str, ipywidgets.Widget]:
        links = _pairs(self._topology(gpus, float(rate)))  # refuses an invalid number of devices
        look = {"style": {"description_width": "initial"}, "continuous_update": False}

        def slider(name: str, options: Iterable[tuple[str, float]], value: float, fallback: str) -> ipywidgets.Widget:
            labels = {number: label for label, number in options}
            labels.setdefault(value, fallback)
            pairs = [(labels[number], number) for number in sorted(labels)]
            words = text(f"explore.says-{name}")
            return ipywidgets.SelectionSlider(options=pairs, value=value, description=words, **look)

        words = text("explore.says-gpus")
        controls = {
            "gpus": ipywidgets.IntSlider(gpus, min(2, gpus), max(16, gpus), description=words, **look),
            "chunks": slider("chunks", [(str(c), c) for c in CHUNKS], require_chunks(chunks), str(chunks)),
            "nbytes": slider("nbytes", [(s, size(s)) for s in SIZES], nbytes, show_size(nbytes)),
        }
        if _takes(self._place) > 1:
            rates = [(r, float(bandwidth(r))) for r in RATES]
            controls["bandwidth"] = slider("bandwidth", rates, float(rate), str(rate))
        if links:
            options = [(text("explore.says-none"), ()), *((f"{a} ↔ {b}", (a, b)) for a, b in links)]
            words = text("explore.says-slow")
            controls["slow"] = ipywidgets.Dropdown(options=options, value=(), description=words, style=look["style"])
            controls["slower"] = slider("slower", [(f"÷ {by}", by) for by in SLOWER], 2, "")
        return controls

    def _topology(self, count: int, rate: float) -> Topology:
        arguments = (count, Bandwidth(rate)) if _takes(self._place) > 1 else (count,)
        return self._once(arguments, lambda: self._place(*arguments))

    def _once(self, key: tuple, make: Callable[[], Topology]) -> Topology:
        """Make each topology only once, because it caches its routes."""
        if key not in self._places:
            self._places[key] = make()
        return self._places[key]

    def set(self, **values: object) -> None:
        """Move several sliders at once: name in :attr:`controls` = new value."""
        for name, value in values.items():
            self.controls[name].value = value

    def redraw(self) -> None:
        """Compute and show everything anew for the positions of the sliders."""
        self._follow_links(self._topology(*self._place_of(self._now())))
        self.traces, self.refused = self._run(self._now())
        self._race()
        self._report.value = self._told()

    def _told(self) -> str:
        return report(self.traces, self.refused)

    def _content(self, values: dict) -> dict:
        """Return what a page without a kernel shows for these positions."""
        return raced(*self._run(values))

    def _now(self) -> dict[str, object]:
        return {name: control.value for name, control in self.controls.items()}

    def _place_of(self, values: dict) -> tuple[int, float]:
        return values["gpus"], values.get("bandwidth", 0.0)

    def _run(self, values: dict) -> tuple[dict[str, Trace], dict[str, str]]:
        """Return the traces of the strategies for these positions, and the errors of those without a plan."""
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
            except Exception as error:  # a reader's function may raise anything; the others still race
                refused[name] = f"{type(error).__name__}: {error}"
        return traces, refused

    def _follow_links(self, topology: Topology) -> None:
        """Update the list of links if the topology has other links now."""
        if "slow" not in self.controls:
            return
        slow, pairs = self.controls["slow"], _pairs(topology)
        if [pair for _, pair in slow.options[1:]] != pairs:
            value = slow.value if slow.value in pairs else ()
            slow.unobserve_all("value")
            slow.options = [slow.options[0], *((f"{a} ↔ {b}", (a, b)) for a, b in pairs)]
            slow.value = value
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
        times = [f"{named(name)} {show_seconds(trace.duration)}" for name, trace in self.traces.items()]
        return f"<explore: {', '.join(times + list(self.refused))}>"

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        """Add a page for readers without a kernel, with some positions of the sliders computed in advance."""
        widget = super()._repr_mimebundle_(**kwargs)
        content = page(self._offers(), self._content, self._shown, self._first())
        bundle = widget | {"text/plain": repr(self), "text/html": content}
        return bundle if has_front_end() else without_view(bundle)

    def _first(self) -> str:
        """Return what comes before the race on a page without a kernel, as HTML."""
        return ""

    def _offers(self) -> list[Offer]:
        """Return each slider with its position, and a few other positions."""
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
            at_once = 2 if name == "slow" else 1  # a link of one GPU, and the one that all share
            offers.append(Offer(name, self.controls[name].description, now, others, labels, at_once))
        return offers


def _options(control: ipywidgets.Widget) -> list[tuple[object, str]]:
    """Return (value, label) for each position of a slider."""
    if isinstance(control, ipywidgets.IntSlider):
        return [(value, str(value)) for value in range(control.min, control.max + 1)]
    return [(value, label) for label, value in control.options]


def slowed(topology: Topology, pair: tuple[str, str], by: float) -> Topology:
    """Return the same topology with the link between two nodes slower by a factor, each way."""
    links = [
        replace(link, bandwidth=Bandwidth(link.bandwidth / by)) if {link.src, link.dst} == set(pair) else link
        for link in topology.links
    ]
    return Topology(topology.name, topology.kinds, links, limits=topology.limits)


def _pairs(topology: Topology) -> list[tuple[str, str]]:
    """Return the pairs of linked nodes, one for both ways."""
    return list(dict.fromkeys(tuple(sorted((link.src, link.dst))) for link in topology.links))


def _devices(topology: Topology) -> list[str]:
    """Return the nodes that hold gradients: the GPUs, or, if there are none, all that do not forward."""
    gpus = [node for node, kind in topology.kinds.items() if kind == "gpu"]
    return gpus or [node for node, kind in topology.kinds.items() if kind not in ("switch", "memory")]


def _takes(function: Callable) -> int:
    """Return the number of its positional parameters."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in inspect.signature(function).parameters.values())


def _takes_chunks(function: Callable) -> bool:
    return "chunks" in inspect.signature(function).parameters


# ---- the race with which the course begins: three ways to add up gradients


class FirstRace(Exploration):
    """Three ways to add up the gradients of 2 to 8 GPUs; a notebook shows them, with sliders."""

    def __init__(self):
        super().__init__(WAYS, None, 4, 1, BYTES[2], bandwidth(RATE))
        self._all = [self.children[0], self._report, self._stage, *self.children[3:]]
        buttons = [ipywidgets.Button(description=name, tooltip=says) for name, says in self._choices().items()]
        for button in buttons:
            button.on_click(lambda chosen: self.bet(chosen.description))
        cards = "".join(f"<li><b>{escape(name)}</b>: {escape(says)}</li>" for name, says in self._choices().items())
        asked = ipywidgets.HTML(f"<b>{escape(text('explore.bet'))}</b><ul>{cards}</ul>{escape(text('explore.bet-on'))}")
        self.children = [asked, ipywidgets.HBox(buttons)]

    def _choices(self) -> dict[str, str]:
        """Return the name of each way, in the language in force, and a sentence about it."""
        says = (text(f"explore.way-{key}") for key in ("one", "parts", "ring"))
        return dict(zip(map(named, WAYS), says, strict=True))

    def bet(self, name: str) -> None:
        """Take a bet on the run with that name: the race runs, and the sliders appear."""
        best = min(self.traces, key=lambda way: self.traces[way].duration)
        key = "right" if name == named(best) else "wrong"
        self._report.value = f"<b>{escape(text(f'explore.bet-{key}', name=named(best)))}</b>{self._told()}"
        self.children = [self._stage, self._report, self._all[0], *self._all[3:]]
        self.player.data = self.player.data | {"begins": True}

    def _make_controls(self, gpus: int, chunks: int, nbytes: int, rate: Bandwidth) -> dict[str, ipywidgets.Widget]:
        options = {
            "gpus": [(str(count), count) for count in range(2, 9)],
            "nbytes": [(show_size(each), each) for each in BYTES],
            "links": [(text(f"explore.{name}"), name) for name in LINKS],
        }
        start = {"gpus": gpus, "nbytes": nbytes, "links": "two-switches"}
        look = {"style": {"description_width": "initial"}}
        return {
            name: ipywidgets.SelectionSlider(
                options=pairs, value=start[name], description=text(f"explore.says-{name}"), **look
            )
            for name, pairs in options.items()
        }

    def _place_of(self, values: Mapping) -> tuple[str, int]:
        return values["links"], values["gpus"]

    def _topology(self, links: str, gpus: int) -> Topology:
        return self._once((links, gpus), lambda: LINKS[links](gpus))

    def _race(self) -> None:
        again = self.player is not None
        super()._race()
        if again:
            self.player.data = self.player.data | {"begins": True}

    def _told(self) -> str:
        return verdict(self.player.data["runs"])

    def _content(self, values: dict) -> dict:
        if (key := tuple(values.values())) not in SCENES:  # the readers of all languages see the same
            traces, _ = self._run(values)
            SCENES[key] = traces, staged([*traces.values()])
        content = pictured(*SCENES[key])
        gpus, nbytes, links = values["gpus"], show_size(values["nbytes"]), text(f"explore.{values['links']}")
        place = f"{gpus} GPU, {nbytes}, {links}. "  # another picture on the page may show the same runs
        for run in content["data"]["runs"]:
            run["described"] = place + run["described"]
        stills = [still.replace("<desc>", f"<desc>{escape(place)}", 1) for still in content["stills"]]
        return content | {"stills": stills, "report": verdict(content["data"]["runs"])}

    def _offers(self) -> list[Offer]:
        now = self._now()
        others = {"gpus": [8, 2], "links": [*LINKS], "nbytes": [BYTES[0]]}
        return [
            Offer(
                name,
                self.controls[name].description,
                now,
                [value for value in few if value != now[name]],
                dict(_options(self.controls[name])),
            )
            for name, few in others.items()
        ]

    def _first(self, hero: str = "", beside: str = "") -> str:
        return bet(self._choices(), hero, beside)

    def page(self, more: str, hero: str = "", beside: str = "") -> tuple[str, dict[str, str]]:
        """Return the bet and the picture with sliders as HTML, and file → script with all their positions.

        ``hero`` and ``beside`` are a picture and what stands below the question, as HTML.
        """
        return dials(self.controls, self._content, more, self._first(hero, beside))


def verdict(runs: list[dict]) -> str:
    """Return the winner, and the link that decides in each run, as HTML."""
    order = sorted(runs, key=lambda run: run["duration"])
    first = [run for run in order if run["duration"] <= ALIKE * order[0]["duration"]]
    names = text("list.between").join(run["name"] for run in first)
    best = text("explore.fastest", names=names, time=first[0]["end"], why=first[0]["reason"][1])
    later = [
        text("explore.ran", name=run["name"], time=run["end"], why=run["reason"][1]) for run in order[len(first) :]
    ]
    parts = [f"<b>{escape(best)}</b>", *map(escape, later)]
    return f'<div class="d2lps-explore" lang="{html_language()}" role="status"><p>{"<br>".join(parts)}</p></div>'
