"""``python -m d2lps step``: the parts of a step as torch.profiler recorded them, beside a prediction, and who waits."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from d2lps.messages import LANGUAGES, named, speak, text, why
from d2lps.profile import Parts, Profile, ProfileError, divide, read
from d2lps.scaling import GPUS, MODELS, Layout, ScalingError, Transformer
from d2lps.scaling.layout import read as read_layout
from d2lps.scaling.models import from_config
from d2lps.scaling.models import read as read_json
from d2lps.scaling.speed import step as predict
from d2lps.trace import Trace
from d2lps.units import UnitError, bandwidth, show_seconds
from d2lps.view.tables import Table, table

__all__ = ["main", "report"]
SHOWN = 8  # ranks in a table
SMALL = 0.01  # of a step: less waiting is not worth a sentence
CAUSES = "tensor context pipeline experts data".split()  # of messages, in a prediction
MEASURED = {
    "attention": "matrices",
    "reading": "others",
    "starts": "others",
    "update": "others",
}  # predicted → measured
ORDER = ["matrices", "others", *CAUSES, "bubble", "waiting", "copies", "loading", "idle"]


def report(
    profiles: Sequence[Profile], layout: Layout | None = None, predicted: Mapping[str, float] | None = None
) -> tuple[str, Table, str]:
    """Return a line on the profiles, the table of parts, and a sentence that says who waits for whom.

    Args:
        profiles: As :func:`~d2lps.profile.read` returns them.
        layout: The layout of the run: messages are then called after what they are for.
        predicted: The parts of a step as :func:`~d2lps.scaling.step` returns them.

    Returns:
        Times are means over the steps.
    """
    steps = divide(profiles)
    ranks = {profile.rank: [each for each in steps if each.rank == profile.rank] for profile in profiles}
    waits = waiting(ranks)
    slow = max(waits, key=lambda rank: sum(waits[rank].values()), default=profiles[0].rank)
    shown = sorted({slow, *list(ranks)[:: max(1, -(-len(ranks) // (SHOWN - 1)))]}) if len(ranks) > SHOWN else [*ranks]
    names: dict[str, set[str]] = defaultdict(set)  # a row → the kinds of messages in it
    cells: dict[str, dict[int, float]] = defaultdict(lambda: dict.fromkeys(shown, 0.0))
    hidden: dict[str, dict[int, float]] = defaultdict(lambda: dict.fromkeys(shown, 0.0))
    for rank in shown:
        for each in ranks[rank]:
            for part, seconds in each.parts.items():
                row = part if part in ORDER else cause(part, each.groups.get(part, ()), layout)
                names[row].add(part)
                cells[row][rank] += seconds / len(ranks[rank])
            for part, seconds in each.hidden.items():
                hidden[part][rank] += seconds / len(ranks[rank])
    expected = _expected(predicted)
    lines = {part: cells[part] for part in sorted({*cells, *expected}, key=lambda part: (_place(part), part))}
    rows = {_title(part, names[part]): [*lines[part].values(), expected.get(part)] for part in lines}
    whole = [sum(each.seconds for each in ranks[rank]) / len(ranks[rank]) for rank in shown]
    rows[text("profile.part.whole")] = [*whole, sum(expected.values())]
    rows |= {
        text("profile.part.hidden", name=_spelled(part)): [*each.values(), None]
        for part, each in sorted(hidden.items())
    }
    columns = len(shown) + bool(expected)
    found = [
        [head, *("–" if seconds is None else show_seconds(seconds) for seconds in row[:columns])]
        for head, row in rows.items()
        if any(row)
    ]
    parts = table("rank-of-part", *shown, *["predicted"] * bool(expected), rows=found)
    numbers = sorted({each.step for each in steps})
    took = sum(each.seconds for each in steps) / len(steps)
    device = "GPU" if profiles[0].gpu else "CPU"
    span = f"{numbers[0]}–{numbers[-1]}" if numbers[1:] else str(numbers[0])
    line = text("profile.line", ranks=len(profiles), device=device, steps=span, took=show_seconds(took))
    return line, parts, _sentence(waits, slow, took, len(ranks))


def waiting(ranks: Mapping[int, Sequence[Parts]]) -> dict[int, dict[int, float]]:
    """Return rank → other rank → the seconds per step that the other waits for it."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for rank, steps in ranks.items():
        for each in steps:
            for slow, seconds in each.waited.items():
                found[slow][rank] = found[slow].get(rank, 0.0) + seconds / len(steps)
    return dict(found)


def cause(name: str, group: tuple[int, ...], layout: Layout | None) -> str:
    """Return what messages are for, by the ranks of their group: ``"tensor"`` … ``"data"``; else their own name.

    From inside to outside, the dimensions are tensor, context, pipeline and data, as for :func:`d2lps.scaling.step`.
    """
    if layout is None:
        return name
    kind = name.partition(" ")[0]
    if kind in ("p2p", "send_recv") and layout.pipeline > 1:
        return "pipeline"
    if kind == "all_to_all" and layout.expert > 1:
        return "experts"
    sizes = {"tensor": layout.tensor, "context": layout.context, "pipeline": layout.pipeline, "data": layout.data}
    used = {dimension: size for dimension, size in sizes.items() if size > 1}
    if not group:
        return next(iter(used), name) if len(used) == 1 else name
    apart, stride = {second - first for first, second in zip(group, group[1:], strict=False)}, 1
    for dimension, size in sizes.items():
        if len(group) == size > 1 and apart == {stride}:
            return dimension
        stride *= size
    shares = layout.context * layout.data  # of replicas and parts of sequences together
    return "data" if len(group) == shares and (layout.pipeline == 1 or layout.context == 1) else name


def _expected(predicted: Mapping[str, float] | None) -> dict[str, float]:
    """Return a prediction by the parts of a measured step."""
    parts: dict[str, float] = defaultdict(float)
    for name, seconds in (predicted or {}).items():
        parts[MEASURED.get(name, name)] += seconds
    return parts


def _place(part: str) -> float:
    return ORDER.index(part) if part in ORDER else ORDER.index("data") + 0.5


def _title(part: str, names: set[str]) -> str:
    if part in CAUSES:
        return text(f"profile.part.{part}", names=", ".join(sorted(names)) or "–")
    return text(f"profile.part.{part}") if part in ORDER else text("profile.part.exposed", name=_spelled(part))


def _spelled(part: str) -> str:
    """Return the name of a kind of messages, and its group: all-reduce for ``all_reduce``."""
    kind, space, group = part.partition(" ")
    return named(kind) + space + group


def _sentence(waits: Mapping[int, Mapping[int, float]], slow: int, took: float, ranks: int) -> str:
    if ranks == 1:
        return text("profile.alone")
    most = sorted(waits.get(slow, {}).items(), key=lambda each: -each[1])
    worth = [text("profile.waits", rank=rank, took=show_seconds(each)) for rank, each in most if each > SMALL * took]
    return text("profile.slowest", slow=slow, waits=", ".join(worth[:SHOWN])) if worth else text("profile.even")


def main(arguments: list[str]) -> int:
    """Print the parts of the steps, or write them as a page that plays; 1 if a file is no profile."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lps step", description="The parts of recorded training steps, and who waits for whom."
    )
    known = "Chrome trace of torch.profiler, .json or .json.gz, one per rank"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=known)
    parser.add_argument("--layout", help="that of the run, such as t8.p2.v2.none, for a prediction beside it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", help=" ".join(MODELS))
    which.add_argument("--config", type=Path, metavar="FILE", help="config.json of a model, as Hugging Face writes it")
    parser.add_argument("--gpu", default="h100", choices=GPUS, help="%(default)s if left out")
    parser.add_argument("--batch", type=int, help="sequences of a step")
    parser.add_argument("--network", help='a GPU\'s rate to other machines, such as "400 Gbit/s"')
    parser.add_argument("--precision", choices=("bf16", "fp8", "mixed"), default="bf16")
    parser.add_argument("--player", type=Path, metavar="FILE", help="write an HTML page that plays the middle step")
    parser.add_argument("--language", choices=LANGUAGES, default="en")
    options = parser.parse_args(arguments)
    speak(options.language)
    try:
        profiles = read(options.files)
        layout, predicted = _predicted(options, profiles)
        print(*report(profiles, layout, predicted), sep="\n")
        if options.player:
            from d2lps.view.player import watch

            print(text("scaling.written", file=watch(Trace.from_kineto(options.files)).save(options.player)))
    except (ProfileError, ScalingError, UnitError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(text("scaling.not-written", file=options.player, why=why(error)), file=sys.stderr)
        return 1
    return 0


def _predicted(
    options: argparse.Namespace, profiles: Sequence[Profile]
) -> tuple[Layout | None, Mapping[str, float] | None]:
    """Return the layout of the run and the parts that are predicted for it; None if no prediction is asked for."""
    if not options.layout and not options.model and not options.config:
        return None, None
    if not options.layout or not options.batch or not (options.model or options.config):
        raise ScalingError(text("profile.need"))
    if options.model and options.model not in MODELS:
        known = ", ".join(MODELS)
        raise ScalingError(text("scaling.one-of", name="model", value=options.model, known=known, own="--config FILE"))
    model: Transformer = MODELS[options.model] if options.model else from_config(read_json(options.config))
    gpus = max(len(profiles), *(profile.world for profile in profiles))
    layout = read_layout(options.layout, gpus, options.batch)
    gpu = GPUS[options.gpu]
    if options.network:
        gpu = gpu._replace(outside=bandwidth(options.network))
    return layout, predict(model, layout, gpu, precision=options.precision)
