"""The upper half of a picture: nodes with what they hold, links, and the messages under way."""

from functools import cached_property
from itertools import groupby

from d2lps.trace import Trace
from d2lps.view.drawing.boxes import KEY, LABEL, PAD, Box
from d2lps.view.drawing.layout import Layout, arrange
from d2lps.view.drawing.links import badges, breadth, forwarding, lanes, rates
from d2lps.view.drawing.motion import Look, Motion, follow
from d2lps.view.drawing.paths import TILE, MessagePath, paths
from d2lps.view.drawing.svg import area, block, fine, hatch, num, rect, say, shift, short, stroke, tag, words, worker


class Scene:
    """What can be drawn of a trace: its layout, its motion, and the pieces of SVG that a player moves."""

    def __init__(self, trace: Trace, widest: float = 104.0):
        self.trace = trace
        self.layout: Layout = arrange(trace.topology, trace.plan, widest)
        self.motion: Motion = follow(trace)

    @cached_property
    def buffer(self) -> Box:
        """Where the cells lie, from the left upper corner of a node's box."""
        first = self.trace.plan.nodes[0]
        tall = next(iter(self.layout.cells[first].values())).h
        return Box(PAD, PAD + LABEL, self.layout.boxes[first].w - 2 * PAD, tall)

    @cached_property
    def across(self) -> list[tuple[float, float]]:
        """Key → where its cell begins within the buffer, and its width."""
        cells = self.layout.cells[self.trace.plan.nodes[0]].values()
        left = min(cell.x for cell in cells)
        return [(cell.x - left, cell.w) for cell in cells]

    @property
    def gap(self) -> float:
        """The breadth of the lines between cells."""
        return 1.6 if len(self.across) <= 8 else 0.8

    @property
    def slots(self) -> int:
        """How many slots a cell has: one per worker."""
        return max(1, len(self.motion.contributors))

    def level(self, worker: int, height: float) -> float:
        """The upper edge of a worker's slot in a cell of that height: the first one lies at the bottom."""
        return height * (1 - (worker + 1) / self.slots)

    # The pieces that a cell is put together from, by key, as paths from the buffer's corner.

    @cached_property
    def slot(self) -> list[str]:
        return [self._filled(x, x + w) for x, w in self.across]

    @cached_property
    def frame(self) -> list[str]:
        inset = self.gap / 2 if len(self.across) > 1 else 0.0
        return [rect(x + inset, 0, max(0.2, w - 2 * inset), self.buffer.h) if w else "" for x, w in self.across]

    @cached_property
    def hatch(self) -> list[str]:
        return [hatch(x, 0, w, self.buffer.h) if w else "" for x, w in self.across]

    def _filled(self, start: float, end: float) -> str:
        return rect(start, 0, end - start, self.buffer.h / self.slots)

    # The pieces of a message, by key, around its middle.

    @cached_property
    def widths(self) -> list[float]:
        widest = min(24.0, max(6.0, self.layout.room))
        return [min(widest, max(4.0, 0.6 * w)) for _, w in self.across]

    @cached_property
    def sheet(self) -> list[str]:
        return [rect(-w / 2 - 1.5, -TILE / 2 - 1.5, w + 3, TILE + 3) for w in self.widths]

    @cached_property
    def layer(self) -> list[str]:
        return [rect(-w / 2, -TILE / 2, w, TILE / self.slots) for w in self.widths]

    @cached_property
    def shading(self) -> list[str]:
        return [hatch(-w / 2, -TILE / 2, w, TILE) for w in self.widths]

    @cached_property
    def growth(self) -> list[tuple[float, float]]:
        """How much larger than the message its cell is, across and down."""
        return [(w / narrow, self.buffer.h / TILE) for (_, w), narrow in zip(self.across, self.widths, strict=True)]

    @cached_property
    def paths(self) -> list[MessagePath]:
        """The path of each message."""
        return paths(self.trace, self.layout, self.motion, self.widths)

    def svg(self, at: float, **place: object) -> str:
        """The picture at a moment."""
        topology, layout, motion = self.trace.topology, self.layout, self.motion
        busy = {self.trace.plan.nodes[i] for i in motion.working_at(at)}
        parts = [lanes(topology, layout, motion, at)]
        for node, box in layout.boxes.items():
            own = node in layout.cells
            parts.append(self._node(node, box, node in busy) if own else forwarding(topology, layout, node))
        parts += [self._contents(at), rates(topology, layout), badges(layout, motion, at), self._tiles(at)]
        size = f"--d2-wide:{fine(breadth(topology, layout))};--d2-natural:{num(layout.width)}"
        view = f"0 0 {num(layout.width)} {num(layout.height)}"
        return tag("svg", "".join(parts), class_="d2-scene", viewBox=view, style=size, **place)

    def _node(self, node: str, box: Box, busy: bool) -> str:
        """A node's box with its name, and the empty buffer; ``busy``: in the midst of an update."""
        left, parts = box.x + PAD, [tag("title", say(node))]
        parts.append(block(box, **(area("box", 2, "ink") if busy else area("box", 1))))
        if node in self.motion.contributors:
            number = self.motion.contributors.index(node)
            parts.append(tag("circle", cx=left + 5, cy=box.y + PAD + 8, r=4.5, **worker(number)))
            left += 13
        room = box.x + box.w - PAD - left
        most = f"--d2-most:{num(min(17, room / (0.6 * len(node))))}px"
        parts.append(words(short(node, room), left, box.y + PAD + 13, anchor=None, style=most))
        well, where = rect(0, 0, self.buffer.w, self.buffer.h), shift(box.x + PAD, box.y + PAD + LABEL)
        parts.append(tag("path", d=well, **area("well"), transform=where))
        for key, cell in self.layout.cells[node].items():
            if self.layout.labelled and cell.w:  # a key without a share has a place, but no breadth
                parts.append(words(short(key, cell.w, KEY), cell.centre[0], cell.y + cell.h + 11, "key", "soft"))
        return tag("g", "".join(parts), class_="d2-node d2-working" if busy else "d2-node")

    def _contents(self, at: float) -> str:
        """Per node a group: a path per worker over all cells, the hatching, the lines between cells, the frames."""
        looks, keys, parts = self.motion.cells_at(at), len(self.across), []
        between = "".join(f"M{fine(x)} 0v{fine(self.buffer.h)}" for x in sorted({x for x, w in self.across if x and w}))
        for i, node in enumerate(self.trace.plan.nodes):
            mine, box = looks[i * keys : (i + 1) * keys], self.layout.boxes[node]
            inside = []
            for w in range(len(self.motion.contributors)):
                where = f"translate(0 {fine(self.level(w, self.buffer.h))})"
                filled = self._runs([w in look.who for look in mine])
                inside.append(tag("path", d=filled, **worker(w), transform=where))
            hatches = "".join(piece for piece, look in zip(self.hatch, mine, strict=True) if look.updated)
            frames = "".join(piece for piece, look in zip(self.frame, mine, strict=True) if look.complete)
            inside.append(tag("path", d=hatches, **stroke("new")))
            inside.append(tag("path", d=between, **stroke("gaps", self.gap)) if between else "")
            inside.append(tag("path", d=frames, **stroke("done", 1.5 if keys <= 4 else 1)))
            parts.append(tag("g", "".join(inside), class_="d2-fill", transform=shift(box.x + PAD, box.y + PAD + LABEL)))
        return "".join(parts)

    def _runs(self, filled: list[bool]) -> str:
        """The filled slots of one worker, neighbours in one piece."""
        edges = [*(x for x, _ in self.across), self.buffer.w]
        runs = [[*run] for on, run in groupby(range(len(filled)), lambda k: filled[k]) if on]
        return "".join(self._filled(edges[run[0]], edges[run[-1] + 1]) for run in runs)

    def _tiles(self, at: float) -> str:
        keys, parts = list(self.trace.plan.share), []
        for i, m in enumerate(self.motion.messages):
            if m.start <= at < m.end:
                x, y, grown = self.paths[i].at((at - m.start) / (m.end - m.start))
                key = keys.index(m.key)
                wide, high = (1 + (size - 1) * grown for size in self.growth[key])
                where = shift(x, y) + (f" scale({wide:.2f} {high:.2f})" if grown else "")
                parts.append(tag("g", self._tile(key, self.motion.looks[m.look], 1 - grown), transform=where))
        return tag("g", "".join(parts), class_="d2-tiles")

    def _tile(self, key: int, look: Look, opacity: float) -> str:
        """A message around its own middle. Near a cell its sheet fades, until only what it carries is seen."""
        edge = area("tile", 1, "ink" if look.complete else None)
        parts = [tag("path", d=self.sheet[key], **edge, opacity=f"{opacity:.2f}" if opacity < 1 else None)]
        parts += [
            tag("path", d=self.layer[key], transform=f"translate(0 {fine(self.level(w, TILE))})", **worker(w))
            for w in look.who
        ]
        if look.updated:
            parts.append(tag("path", d=self.shading[key], **stroke("new")))
        return tag("g", "".join(parts), class_="d2-full" if look.complete else None)
