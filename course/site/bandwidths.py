"""The page of bus bandwidths: predicted for each topology and collective, beside published measurements."""

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from d2lps import (
    Plan,
    Topology,
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
from d2lps.messages import only, text_in
from d2lps.notebook.predict import Bar, chart
from d2lps.topology import leaf_spine
from d2lps.units import show_number, show_size

SIZES = (10**6, 32 * 10**6, 10**9, 8 * 10**9)  # bytes of the buffer of one node
NVLINK, NETWORK = "1.7 us", "7 us"  # of each link; half of a step's latency in NCCL's tuning.cc


@dataclass
class Published:
    """A measured bus bandwidth of an all-reduce of large buffers, in GB/s, and the page that reports it."""

    speed: float
    source: str


@dataclass
class Host:
    """A topology with its devices, dealt to hosts, and published values of the ring and of the sum in the switch.

    ``adds`` says whether its switch can add.
    """

    name: str
    place: Topology
    members: list[list[str]]
    ring: Published | None = None
    switch: Published | None = None
    adds: bool = False

    @property
    def nodes(self) -> list[str]:
        return [node for host in self.members for node in host]


def hosts() -> list[Host]:
    """Return the topologies of the page."""

    def inside(name: str, rate: float, gpus: int = 8, **more: "Published | bool") -> Host:
        place = nvswitch(gpus, f"{rate:g} GB/s", NVLINK, links=1)
        return Host(name, place, [[f"gpu{i}" for i in range(gpus)]], **more)

    def between(name: str, count: int, nic: str, rate: float, **published: Published) -> Host:
        place = rails(count, nic=nic, inside=f"{rate:g} GB/s", latency=NETWORK, inside_latency=NVLINK)
        return Host(name, place, [[f"host{h}/gpu{g}" for g in range(8)] for h in range(count)], **published)

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
        between(
            "24 A100, 4 × 200 Gbit/s per host",
            3,
            "12.5 GB/s",
            240,
            ring=Published(96, issues + "nccl-tests/issues/119"),
        ),
        between(
            "32 H100, 8 × 400 Gbit/s per host",
            4,
            "50 GB/s",
            370.8,
            ring=Published(376, issues + "nccl-tests/issues/290"),  # 46 to 48 for each of 8 cards
        ),
        Host(
            "32 hosts in racks of 8, 100 Gbit/s, oversubscribed 4:1",
            leaf_spine(32, per_leaf=8, nic="100 Gbit/s", oversubscription=4, latency=NETWORK),
            [[f"host{i}"] for i in range(32)],
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


@cache
def predicted() -> list[tuple[Host, dict[str, list[float]]]]:
    """Return each host with its bus bandwidths in GB/s: collective → a value for each of ``SIZES``."""
    rows = []
    for host in hosts():
        speeds = {}
        for name, make in plans(host):
            plan = make()
            total = len(host.nodes) if name == "all-to-all" else 1  # a plan's bytes are those of all nodes
            speeds[name] = [bandwidth(cost.shared(plan, host.place, size * total)).busbw / 1e9 for size in SIZES]
        rows.append((host, speeds))
    return rows


def page(language: str) -> str:
    """Return the body of the page: for each topology a table of bus bandwidths in GB/s, and the published ones."""

    def say(key: str, **values: object) -> str:
        return html.escape(text_in(language, f"site.{key}", **values))

    parts = [f"<h1>{say('bandwidths')}</h1><p>{say('bandwidths-lead')}</p>"]
    groups = {}
    for host, speeds in predicted():
        for name, published in (("all-reduce", host.ring), ("all-reduce, NVLS", host.switch)):
            if name in speeds:
                values = {"modelled": speeds[name][-1], "found": published and published.speed}
                bars = zip(("model", "measured"), values.items(), strict=True)
                groups[f"{host.name} · {name}"] = [
                    Bar(color, text_in(language, f"predict.{label}"), value, "GB/s") for color, (label, value) in bars
                ]
    title = say("bandwidths-picture", size=show_size(SIZES[-1]))
    parts.append(f'<h2>{title}</h2><div class="shown bandwidths">{only(language, lambda: chart(groups))}</div>')
    head = "".join(f"<th>{show_size(size)}</th>" for size in SIZES)
    for host, speeds in predicted():
        rows, notes = [], []
        for name, values in speeds.items():
            rows.append(f"<tr><th>{name}</th>{''.join(f'<td>{show_number(value, 3)}</td>' for value in values)}</tr>")
            published = {"all-reduce": host.ring, "all-reduce, NVLS": host.switch}.get(name)
            if published:
                off = f"{values[-1] / published.speed - 1:+.1%}"
                sentence = say("bandwidths-published", collective=name, speed=f"{published.speed:g}", off=off)
                label = html.escape(published.source.removeprefix("https://github.com/"))
                notes.append(f'<p>{sentence} <a href="{published.source}">{label}</a></p>')
        parts.append(f"<h2>{html.escape(host.name)}</h2><table><tr><th></th>{head}</tr>{''.join(rows)}</table>")
        parts += notes
    parts.append(f"<h2>{say('bandwidths-why')}</h2><p>{say('bandwidths-because')}</p>")
    return "".join(parts)
