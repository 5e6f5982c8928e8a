"""The page of bus bandwidths: predicted for each topology and collective, beside published measurements."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

from course.site.front import FRAME
from d2lps import (
    Plan,
    Topology,
    Trace,
    all_gather,
    all_to_all,
    bandwidth,
    broadcast,
    cost,
    dgx1_v100,
    in_switch,
    nvswitch,
    rails,
    reduce_scatter,
    ring,
    together,
    two_rings,
)
from d2lps.messages import html_language, named, only, text
from d2lps.notebook.explore_page import dials
from d2lps.notebook.predict import Bar, chart
from d2lps.topology import leaf_spine
from d2lps.units import show_number, show_size

SIZES = (10**6, 32 * 10**6, 10**9, 8 * 10**9)  # bytes of the buffer of one node
NVLINK, NETWORK = "1.7 us", "7 us"  # of each link; half of a step's latency in NCCL's tuning.cc
# Of a reader's own GPUs: name → GB/s to the switch of its host, its card, and whether the switch can add.
KINDS = {"A100": (240.0, "25 GB/s", False), "H100": (370.8, "50 GB/s", True), "B200": (721.8, "50 GB/s", True)}
COUNTS = (2, 4, 8, 16, 32)


@dataclass
class Published:
    """A measured bus bandwidth of an all-reduce of large buffers, in GB/s, and the page that reports it."""

    speed: float
    source: str


@dataclass
class Host:
    """A topology with its devices, dealt to hosts, and published values of the ring and of the sum in the switch.

    ``adds`` says whether its switch can add, and ``says`` is the sentence that its name is part of, if it is.
    """

    name: str
    place: Topology
    members: list[list[str]]
    ring: Published | None = None
    switch: Published | None = None
    adds: bool = False
    says: str = ""

    @property
    def title(self) -> str:
        """The name, in the language in force."""
        return text(f"site.{self.says}", name=self.name) if self.says else self.name

    @property
    def published(self) -> dict[str, Published | None]:
        """Collective → its published bus bandwidth, for those of which one could be."""
        return {"all-reduce": self.ring, "all-reduce, NVLS": self.switch}

    @property
    def nodes(self) -> list[str]:
        return [node for host in self.members for node in host]


def inside(name: str, rate: float, gpus: int = 8, **more: "Published | bool") -> Host:
    """Return GPUs at one switch."""
    place = nvswitch(gpus, f"{rate:g} GB/s", NVLINK, links=1)
    return Host(name, place, [[f"gpu{i}" for i in range(gpus)]], **more)


def between(name: str, count: int, nic: str, rate: float, **published: Published) -> Host:
    """Return hosts of 8 GPUs, each GPU with a card."""
    place = rails(count, nic=nic, inside=f"{rate:g} GB/s", latency=NETWORK, inside_latency=NVLINK)
    members = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(count)]
    return Host(name, place, members, says="bandwidths-per-host", **published)


def hosts() -> list[Host]:
    """Return the topologies of the page."""
    issues = "https://github.com/NVIDIA/"
    return [
        Host("DGX-1, 8 V100: 6 × 20 GB/s", dgx1_v100("20 GB/s", NVLINK), [[f"gpu{i}" for i in range(8)]]),
        inside("8 A100: 12 × 20 GB/s", 240, ring=Published(230, issues + "nccl-tests/issues/149")),
        inside(
            "8 H100: 18 × 20.6 GB/s",
            370.8,
            ring=Published(370, issues + "nccl-tests/issues/212"),
            switch=Published(480, issues + "nccl-tests/issues/212"),
            adds=True,
        ),
        inside(
            "8 B200 / B300: 18 × 40.1 GB/s",
            721.8,
            ring=Published(695, issues + "nccl/issues/2140"),
            switch=Published(845, issues + "nccl/issues/2140"),
            adds=True,
        ),
        inside("NVL72, 72 B200: 18 × 40.1 GB/s", 721.8, gpus=72, adds=True),
        between("24 A100, 4 × 200 Gbit/s", 3, "12.5 GB/s", 240, ring=Published(96, issues + "nccl-tests/issues/119")),
        between(
            "32 H100, 8 × 400 Gbit/s",
            4,
            "50 GB/s",
            370.8,
            ring=Published(376, issues + "nccl-tests/issues/290"),  # 46 to 48 for each of 8 cards
        ),
        Host(
            "100 Gbit/s",
            leaf_spine(32, per_leaf=8, nic="100 Gbit/s", oversubscription=4, latency=NETWORK),
            [[f"host{i}"] for i in range(32)],
            says="bandwidths-racks",
        ),
    ]


def plans(host: Host) -> Iterator[tuple[str, Callable[[], Plan]]]:
    """Yield the collectives of the page by name, each with what makes its plan."""
    nodes, members = host.nodes, host.members
    if len(members) > 1 and len(members[0]) > 1:  # a ring for each rail, so that all cards work
        turned = [[gpu for gpus in members for gpu in gpus[by:] + gpus[:by]] for by in range(len(members[0]))]
        yield "all-reduce", lambda: together(*(ring(nodes, key=f"r{i}-") for i, nodes in enumerate(turned)))
    elif host.place.name == "dgx1_v100":
        yield "all-reduce", lambda: two_rings(host.place, both=True)
    else:
        yield "all-reduce", lambda: ring(nodes)
    if host.adds:
        yield "all-reduce, NVLS", lambda: in_switch(nodes, chunks=4 if len(nodes) > 8 else 32)
    if host.place.name == "dgx1_v100":
        return  # its other pairs have no link of their own
    yield "reduce-scatter", lambda: reduce_scatter(nodes)
    yield "all-gather", lambda: all_gather(nodes)
    yield "all-to-all", lambda: all_to_all(nodes)
    yield "broadcast", lambda: broadcast(nodes, chunks=64)


def traces(host: Host, sizes: tuple[int, ...]) -> Iterator[tuple[str, list[Trace]]]:
    """Yield the collectives of a host by name, each with its run for each of the sizes."""
    for name, make in plans(host):
        plan = make()
        total = len(host.nodes) if name == "all-to-all" else 1  # a plan's bytes are those of all nodes
        yield name, [cost.shared(plan, host.place, size * total) for size in sizes]


@cache
def predicted() -> list[tuple[Host, dict[str, list[float]]]]:
    """Return each host with its bus bandwidths in GB/s: collective → a value for each of ``SIZES``."""
    return [
        (host, {name: [bandwidth(run).busbw / 1e9 for run in runs] for name, runs in traces(host, SIZES)})
        for host in hosts()
    ]


@cache
def own(kind: str, gpus: int) -> dict[str, list[tuple[float, float]]]:
    """Return collective → (GB/s of bus bandwidth, seconds) for each of ``SIZES``, on so many GPUs of a reader."""
    rate, card, adds = KINDS[kind]
    host = inside(kind, rate, gpus, adds=adds) if gpus <= 8 else between(kind, gpus // 8, card, rate)
    return {name: [(bandwidth(run).busbw / 1e9, run.duration) for run in runs] for name, runs in traces(host, SIZES)}


def fields() -> str:
    """Return fields for a reader's own GPUs and size, and the predictions for all their positions."""

    def field(says: str, options: dict[str, object], at: int) -> SimpleNamespace:
        return SimpleNamespace(description=says, options=[*options.items()], index=at)

    controls = {
        "kind": field("GPU", {kind: kind for kind in KINDS}, 1),
        "gpus": field(text("table.gpus"), {str(count): count for count in COUNTS}, COUNTS.index(8)),
        "at": field(text("table.size"), {show_size(size): i for i, size in enumerate(SIZES)}, 2),
    }

    def content(values: dict) -> dict[str, str]:
        groups = {
            named(name): [
                Bar("model", text("table.busbw"), runs[values["at"]][0], "GB/s"),
                Bar("", text("table.takes"), 1e3 * runs[values["at"]][1], "ms"),
            ]
            for name, runs in own(values["kind"], values["gpus"]).items()
        }
        return {"report": f'<div role="status" lang="{html_language()}">{chart(groups)}</div>'}

    return dials(controls, content)[0]


def page(language: str) -> str:
    """Return the body of the page: a reader's own GPUs, and for each topology a table, with the published values."""
    return only(language, _page)


def _page() -> str:
    groups = {}
    for host, speeds in predicted():
        for name in (name for name in host.published if name in speeds):
            found = host.published[name]
            values = {"modelled": speeds[name][-1], "found": found and found.speed}
            bars = zip(("model", "measured"), values.items(), strict=True)
            groups[f"{host.title} · {named(name)}"] = [
                Bar(color, text(f"predict.{label}"), value, "GB/s") for color, (label, value) in bars
            ]
    return FRAME.get_template("bandwidths.html").render(
        predicted=predicted(),
        fields=fields(),
        chart=chart(groups),
        sizes=[*map(show_size, SIZES)],
        busbw=text("table.busbw"),
        named=named,
        number=show_number,
        say=lambda key, **values: text(f"site.{key}", **values),
    )
