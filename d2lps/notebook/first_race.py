"""The race with which the course begins: three ways to add up gradients, with sliders for GPUs, bytes and links."""

from collections.abc import Callable, Mapping
from html import escape

import ipywidgets

from d2lps.algorithms import aggregate_at, ring, sharded
from d2lps.messages import html_language, text
from d2lps.notebook.explore import Exploration, _options
from d2lps.notebook.explore_page import Offer, dials, pictured
from d2lps.topology import Topology, pcie_server
from d2lps.units import Bandwidth, bandwidth, show_size, size
from d2lps.view.player import staged

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


class FirstRace(Exploration):
    """Three ways to add up the gradients of 2 to 8 GPUs; a notebook shows them, with sliders."""

    def __init__(self):
        super().__init__(WAYS, None, 4, 1, BYTES[2], bandwidth(RATE))
        self.children = [self.children[0], self._report, self._stage, *self.children[3:]]

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

    def page(self, more: str) -> tuple[str, str]:
        """Return the picture with sliders as HTML, and the script ``more`` with all their positions."""
        return dials(self.controls, self._content, more)


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
