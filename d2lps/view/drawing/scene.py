"""The upper half of a picture: nodes with their contents, links with their backlogs, and the messages."""

from collections.abc import Sequence
from itertools import groupby

from d2lps.trace import Trace
from d2lps.view.drawing.layout import KEY, LABEL, PAD, Box, Layout, arrange, host, host_boxes
from d2lps.view.drawing.links import breadth, forwarding_box, lanes, node_label, rates
from d2lps.view.drawing.motion import TILE, Look, MessagePath, Motion, follow, paths, plan_of
from d2lps.view.drawing.svg import (
    area,
    block,
    escape,
    fine,
    hatch,
    line,
    num,
    rect,
    shift,
    short,
    stroke,
    tag,
    words,
    worker,
)
from d2lps.view.drawing.theme import LIGHT
from d2lps.view.drawing.traffic import Traffic, backlogs, label_level, losses, traffic


class Scene:
    """The drawable content of a trace: its layout, its motion, and the pieces of SVG that a player moves.

    For each key there are paths from the buffer's corner: a filled ``slot``, the ``frame``, the ``hatch``; paths around
    a message's middle: its ``sheet``, one ``layer``, the ``shading``; and its ``growth``, the ratio of its cell's width
    and height to the message's. ``paths`` has the path of each message. ``view`` is the visible part of the sheet
    (left, top, width, height), and ``peak`` the bytes of the longest bar; a race has the same ones in all scenes.
    """

    def __init__(self, trace: Trace, widest: float = 104.0):
        self.trace, self.plan = trace, plan_of(trace)
        self.layout: Layout = arrange(trace.topology, self.plan, widest, getattr(trace, "loads", None))
        self.motion: Motion = follow(trace)
        self.load: Traffic = traffic(trace, self.motion)
        self.view = 0.0, 0.0, self.layout.width, self.layout.height
        self.mortal = {change.place for change in self.motion.gone}  # the nodes that die at some time
        self.losses = losses(trace, self.motion)
        self.peak, self.label_level = self.load.peak, label_level(self.layout, self.load, 6.5)
        cells = list(self.layout.cells[trace.plan.nodes[0]].values())
        left, self.height = min(cell.x for cell in cells), cells[0].h  # the height of a buffer
        self.across = [(cell.x - left, cell.w) for cell in cells]  # the start of each cell in a buffer, and its width
        self.width = self.layout.boxes[trace.plan.nodes[0]].w - 2 * PAD
        self.gap = 1.6 if len(cells) <= 8 else 0.8  # the breadth of the lines between cells
        self.slots = max(1, len(self.motion.contributors))  # slots of a cell, one per worker
        inset = self.gap / 2 if len(cells) > 1 else 0.0
        self.slot = [self._filled(x, x + w) for x, w in self.across]
        self.frame = [rect(x + inset, 0, max(0.2, w - 2 * inset), self.height) if w else "" for x, w in self.across]
        self.hatch = [hatch(x, 0, w, self.height) if w else "" for x, w in self.across]
        widest = min(24.0, max(6.0, self.layout.room))
        self.widths = [min(widest, max(4.0, 0.6 * w)) for _, w in self.across]
        self.sheet = [rect(-w / 2 - 1.5, -TILE / 2 - 1.5, w + 3, TILE + 3) for w in self.widths]
        self.layer = [rect(-w / 2, -TILE / 2, w, TILE / self.slots) for w in self.widths]
        self.shading = [hatch(-w / 2, -TILE / 2, w, TILE) for w in self.widths]
        self.growth = [(w / tile, self.height / TILE) for (_, w), tile in zip(self.across, self.widths, strict=True)]
        self.paths: list[MessagePath] = paths(trace, self.layout, self.motion, self.widths)

    def level(self, worker: int, height: float) -> float:
        """Return the upper edge of a worker's slot in a cell of that height: the first worker's is at the bottom."""
        return height * (1 - (worker + 1) / self.slots)

    def _filled(self, start: float, end: float) -> str:
        return rect(start, 0, end - start, self.height / self.slots)

    def svg(self, at: float, **place: object) -> str:
        """Draw the scene at a moment."""
        topology, layout = self.trace.topology, self.layout
        busy = {self.trace.plan.nodes[i] for i in self.motion.working_at(at)}
        gone = {self.trace.plan.nodes[i] for i in self.motion.gone_at(at)}
        parts = [host_boxes(layout.hosts, layout.boxes), lanes(topology, layout, self.load, at)]
        for node, box in layout.boxes.items():
            if node in layout.cells:
                parts.append(self.node(node, box, node in busy, node in gone))
            else:
                parts.append(forwarding_box(topology, layout, node))
        parts += [self._contents(at), backlogs(layout, self.load, at, self.peak, self.label_level), self._tiles(at)]
        parts += [rates(topology, layout), self.names()]
        size = f"{self.looks()};--d2-natural:{num(self.view[2])}"
        view = " ".join(map(num, self.view))
        return tag("svg", "".join(parts), class_="d2-scene", viewBox=view, style=size, **place)

    def looks(self) -> str:
        """Return the variables of its CSS rules: the width of lanes, and no rims if slots are too thin for them."""
        width = f"--d2-wide:{fine(breadth(self.trace.topology, self.layout))}"
        return width if self.slots <= 8 else f"{width};--d2-rim:0"

    def node(self, node: str, box: Box, busy: bool = False, gone: bool = False) -> str:
        """Draw a node's box with an empty buffer; ``busy``: in the middle of an update; ``gone``: dead."""
        look = area("box", 2, "ink") if busy else area("box", 1) | ({"fill": LIGHT["well"]} if gone else {})
        parts = [tag("title", escape(node)), block(box, **look)]
        well, where = rect(0, 0, self.width, self.height), shift(box.x + PAD, box.y + PAD + LABEL)
        parts.append(tag("path", d=well, **area("well"), transform=where))
        for key, cell in self.layout.cells[node].items():
            if self.layout.labelled and cell.w:  # the cell of a key without a share has no width
                parts.append(words(short(key, cell.w, KEY), cell.center[0], cell.y + cell.h + 11, "key", "soft"))
        if self.trace.plan.nodes.index(node) in self.mortal:
            lines = line((0, 0), (box.w, box.h)) + line((box.w, 0), (0, box.h))
            cross = tag("path", d=lines, **stroke("done", 2.5), transform=shift(box.x, box.y))
            parts.append(tag("g", cross, class_="d2-cross", **({} if gone else {"display": "none"})))
        states = ["d2-node", *["d2-working"] * busy, *["d2-gone"] * gone]
        return tag("g", "".join(parts), class_=" ".join(states))

    def names(self) -> str:
        """Draw the names of all nodes, which belong above all other parts: messages pass behind them."""
        parts, names = [], self.layout.shown
        longest: dict[str, int] = {}  # the longest of the names that differ only in their number
        for node in self.trace.plan.nodes:
            stem = names[node].rstrip("0123456789")
            longest[stem] = max(longest.get(stem, 0), len(names[node]))
        for node, box in self.layout.boxes.items():
            if node not in self.layout.cells:
                parts.append(node_label(self.trace.topology, self.layout, node))
                continue
            name, left, right = names[node], box.x + PAD, box.x + box.w - PAD
            if node in self.motion.colors:
                dot, left = (left + 5, box.y + PAD + 8), left + 12
                if host(node) and 7.6 * len(name) > right - left:  # give the name all the room, the dot a corner
                    dot, left, right = (box.x + 2, box.y + 2), box.x + 3, right + 3
                parts.append(tag("circle", cx=dot[0], cy=dot[1], r=4.5, **worker(self.motion.colors[node])))
            room = right - left
            # If one of the similar names has room only for its number, all of them show only their numbers.
            shown = short(name, room * len(name) / longest[name.rstrip("0123456789")])
            largest = f"--d2-most:{num(min(20, room / (0.6 * len(shown))))}px"
            parts.append(words(shown, left, box.y + PAD + 13, anchor=None, style=largest))
        return tag("g", "".join(parts), class_="d2-names-above")

    def _contents(self, at: float) -> str:
        """Draw a group per node: a path per worker over all cells, hatching, lines between cells, frames."""
        looks, keys, parts = self.motion.cells_at(at), len(self.across), []
        for i, node in enumerate(self.trace.plan.nodes):
            cells, inside = looks[i * keys : (i + 1) * keys], []
            for w in range(len(self.motion.contributors)):
                inside.append(self.filling(w, self._runs([w in look.who for look in cells])))
            hatches = "".join(piece for piece, look in zip(self.hatch, cells, strict=True) if look.updated)
            frames = "".join(piece for piece, look in zip(self.frame, cells, strict=True) if look.complete)
            inside += [self.hatching(hatches), self.between(), self.frames(frames)]
            parts.append(tag("g", "".join(inside), class_="d2-fill", transform=self.corner(node)))
        return "".join(parts)

    def corner(self, node: str) -> str:
        """Return the transformation to the corner of a node's buffer."""
        box = self.layout.boxes[node]
        return shift(box.x + PAD, box.y + PAD + LABEL)

    def filling(self, number: int, pieces: str) -> str:
        """Draw the filled slots of a worker."""
        where = f"translate(0 {fine(self.level(number, self.height))})"
        return tag("path", d=pieces, **worker(number), transform=where)

    def hatching(self, pieces: str) -> str:
        """Draw the mark of new weights."""
        return tag("path", d=pieces, **stroke("new"))

    def frames(self, pieces: str) -> str:
        """Draw the mark of complete sums."""
        return tag("path", d=pieces, **stroke("done", 1.5 if len(self.across) <= 4 else 1))

    def between(self) -> str:
        """Draw the lines between cells."""
        lines = "".join(f"M{fine(x)} 0v{fine(self.height)}" for x in sorted({x for x, w in self.across if x and w}))
        return tag("path", d=lines, **stroke("gaps", self.gap)) if lines else ""

    def _runs(self, filled: list[bool]) -> str:
        """Return the filled slots of one worker, adjacent ones as one piece."""
        edges = [*(x for x, _ in self.across), self.width]
        runs = [[*run] for on, run in groupby(range(len(filled)), lambda k: filled[k]) if on]
        return "".join(self._filled(edges[run[0]], edges[run[-1] + 1]) for run in runs)

    def _tiles(self, at: float) -> str:
        keys, parts = list(self.plan.share), []
        for i, m in enumerate(self.motion.messages):
            if m.start <= at < m.end:
                x, y, grown = self.paths[i].at((at - m.start) / (m.end - m.start))
                key = keys.index(m.key)
                width, height = (1 + (size - 1) * grown for size in self.growth[key])
                where = shift(x, y) + (f" scale({width:.2f} {height:.2f})" if grown else "")
                parts.append(tag("g", self.tile(key, self.motion.looks[m.look], 1 - grown), transform=where))
        return tag("g", "".join(parts), class_="d2-tiles")

    def tile(self, key: int, look: Look, opacity: float) -> str:
        """Draw a message around its own middle. Near a cell its sheet fades until only its content is visible."""
        edge = area("tile", color="ink" if look.complete else None)
        parts = [tag("path", d=self.sheet[key], **edge, opacity=f"{opacity:.2f}" if opacity < 1 else None)]
        parts += [
            tag("path", d=self.layer[key], transform=f"translate(0 {fine(self.level(w, TILE))})", **worker(w))
            for w in look.who
        ]
        if look.updated:
            parts.append(tag("path", d=self.shading[key], **stroke("new")))
        return tag("g", "".join(parts), class_="d2-full" if look.complete else None)


def race(scenes: Sequence[Scene]) -> None:
    """Align the common parts of all scenes, and give all their bars one scale."""
    peak, width = max(scene.load.peak for scene in scenes), max(scene.layout.width for scene in scenes)
    bars = [min((scene.layout.boxes[bar].y for bar in scene.layout.bars), default=None) for scene in scenes]
    heights = [scene.layout.height for scene in scenes]
    top = max((bar for bar in bars if bar is not None), default=0.0)
    below = [height - bar for height, bar in zip(heights, bars, strict=True) if bar is not None]
    tallest = max([top + max(below, default=0.0), *heights])
    for scene, bar, height in zip(scenes, bars, heights, strict=True):
        up = (tallest - height) / 2 if bar is None else top - bar
        scene.peak, left = peak, (width - scene.layout.width) / 2
        scene.label_level = label_level(scene.layout, scene.load, 9.0 if len(scenes) > 1 else 6.5)
        scene.view = (0.0 - left, 0.0 - up, width, tallest)
