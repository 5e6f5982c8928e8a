"""With what this chapter opens, and its figure: both without a word of any language."""

from d2lps import Trace, simulate
from d2lps.view.drawing.svg import area, number, sheet, symbol, tag, words, worker

COMPUTING = (0.010, 0.010, 0.030)  # seconds that each worker needs for a gradient: the third is slow
GRADIENTS = 12  # that are taken into the weights
BACKWARD, SENDING = 10.0, 8.0  # milliseconds for each layer
LAYERS = (4, 3, 2, 1)  # in the order in which their gradients are ready


def opening() -> dict[str, Trace]:
    """Twelve gradients that count: in rounds of all, in order of arrival, in rounds of the first two of three."""

    def seconds(random, rank):
        return COMPUTING[rank]

    workers = len(COMPUTING)
    runs = {
        "sync": simulate.synchronous(workers, GRADIENTS // workers, seconds, travel=0.004),
        "async": simulate.asynchronous(workers, GRADIENTS, seconds, travel=0.004),
        "first 2 of 3": simulate.synchronous(workers, GRADIENTS // 2, seconds, backup=1, travel=0.004),
    }
    return {name: run.trace() for name, run in runs.items()}


def overlap() -> str:
    """Four layers, their gradients above, their sending below: all at the end, each at once, layer 1 first."""
    ready = {layer: BACKWARD * (i + 1) for i, layer in enumerate(LAYERS)}
    ways = [
        [(layer, ready[1]) for layer in LAYERS],
        [(layer, ready[layer]) for layer in LAYERS],
        [(layer, ready[layer]) for layer in LAYERS[::-1]],
    ]
    left, scale, tall, parts, ends = 92.0, 7.0, 24.0, [], []

    def block(layer: int, start: float, lasts: float, y: float) -> None:
        span = {"x": left + start * scale + 1, "y": y, "width": lasts * scale - 2, "height": tall}
        parts.append(tag("rect", **span, rx=4, **worker(layer - 1)))
        x, middle = left + (start + lasts / 2) * scale, y + tall / 2
        parts.append(tag("circle", cx=x, cy=middle, r=9, **area("paper")))
        parts.append(words(str(layer), x, middle + 4.5))

    for i, way in enumerate(ways):
        y, done = 22.0 + 84 * i, 0.0
        signs = (symbol(sign, left - 14, y + below, "end") for sign, below in (("∇", 17), ("→", 45)))
        parts += [number(i + 1, 20, y + 28), *signs]
        for layer, at in way:
            block(layer, ready[layer] - BACKWARD, BACKWARD, y)
            block(layer, max(at, done), SENDING, y + tall + 4)
            done = max(at, done) + SENDING
        ends.append(f"({i + 1}) {done:g} ms")
        parts.append(words(f"{done:g} ms", left + done * scale + 10, y + tall + 21, anchor="start", font_weight=700))
    return sheet(left + 72 * scale + 78, 264, ", ".join(ends), *parts)
