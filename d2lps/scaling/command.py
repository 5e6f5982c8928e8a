"""``python -m d2lps parallelize``: choose a layout, print it as a table, and write a trace of its pipeline."""

import argparse
import json
import re
import sys
from pathlib import Path

from d2lps.messages import LANGUAGES, speak, text, why
from d2lps.scaling.choosing import parallelize
from d2lps.scaling.gpu import GPUS, Gpu
from d2lps.scaling.layout import Layout
from d2lps.scaling.models import MODELS, from_config, read
from d2lps.scaling.prediction import HABITS, Prediction, predict_step
from d2lps.scaling.transformer import RECOMPUTE, ScalingError
from d2lps.schedule import interleaved, one_f_one_b, pipeline
from d2lps.simulate import cost
from d2lps.topology import Topology, both_ways
from d2lps.trace import Trace
from d2lps.units import Bandwidth, UnitError, bandwidth, meant_size, seconds

OWN = '{"peak": 989e12, "memory": 80e9, "reading": 3.35e12, "inside": 450e9, "outside": 50e9, "fp8": 1979e12}'
PRECISIONS = ("bf16", "fp8", "mixed", "fp16", "fp8-mixed")
UNITS = {"memory": "80 GB", "network": "400 Gbit/s"}  # an example of each
CHOSEN = ("stage", "recompute", "sequence")  # a layout of your own has its own
OWN_OPTIONS = ("trace", "config", "json", "layout", "keep_results")  # of the command alone
MOST_STAGES, MOST_TASKS = 16, 4096  # of a trace, so that it can be read


def main(arguments: list[str]) -> int:
    """Print a layout and its prediction: yours, or the one that :func:`d2lps.parallelize` chooses.

    Returns 1 if there is none, or its trace cannot be written.
    """
    parser = argparse.ArgumentParser(prog="python -m d2lps parallelize", description=__doc__.partition(": ")[2])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help=" ".join(MODELS))
    which.add_argument("--config", type=Path, metavar="FILE", help="config.json of a model, as Hugging Face writes it")
    parser.add_argument("--gpus", required=True, type=_count, help="number of all GPUs")
    parser.add_argument("--gpu", default="a100", help=f"{' '.join(GPUS)}, or FILE.json; %(default)s if left out")
    parser.add_argument("--memory", help='of a GPU, such as "80 GB"; that of its data sheet if left out')
    parser.add_argument("--per-node", type=_count, default=8, help="GPUs of a machine; %(default)s if left out")
    parser.add_argument("--batch", type=_count, help="sequences of a step; about 4 million tokens if left out")
    parser.add_argument("--tensor", type=_count, help="GPUs that share a matrix; chosen if left out")
    parser.add_argument("--pipeline", type=_count, help="stages; chosen if left out")
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), help="of ZeRO; chosen if left out")
    parser.add_argument("--recompute", choices=RECOMPUTE, help="chosen if left out")
    parser.add_argument("--no-sequence", action="store_false", dest="sequence", help="without sequence parallelism")
    parser.add_argument("--context", type=_count, help="tokens of a sequence; those of the model if left out")
    parser.add_argument("--network", help='a GPU\'s rate to other machines, such as "400 Gbit/s"')
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=PRECISIONS[0], help="mixed, fp16: gradients of 16 bits"
    )
    parser.add_argument("--fused-swiglu", action="store_true", help="save two vectors per perceptron, as xFormers does")
    parser.add_argument("--like", metavar="FRAMEWORK", help=f"{' '.join(HABITS)}: its habits are the defaults")
    parser.add_argument("--room", type=_number, help="share of the memory that may be used; 0.9, or 0.97 with --like")
    parser.add_argument("--keep-results", action="store_true", help="stages keep what they have sent")
    parser.add_argument("--layout", help="predict this layout, such as t8.p4.v3.b1.z1.none, instead of choosing one")
    parser.add_argument("--measured", metavar="LAYOUT=SECONDS", help="a measured step, such as t8.p4.v3=21.5")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--language", choices=LANGUAGES, default="en")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the pipeline for Perfetto or chrome://tracing"
    )
    options = vars(parser.parse_args(arguments))
    file, config, as_json, layout, keep = (options.pop(name) for name in OWN_OPTIONS)
    # What is not asked for is the framework's habit.
    options["fused_swiglu"] = options["fused_swiglu"] or None
    options["freed"] = False if keep else None
    speak(options.pop("language"))
    try:
        for unit, convert in (("memory", meant_size), ("network", bandwidth)):
            if options[unit] is not None:
                convert(options[unit])
        if config:
            options["model"] = from_config(read(config), str(config))
        if options["gpu"].endswith(".json"):
            options["gpu"] = _own_gpu(Path(options["gpu"]))
        for name, known, own in (("model", MODELS, "--config config.json"), ("gpu", GPUS, f"--gpu FILE.json = {OWN}")):
            value = options[name]
            if isinstance(value, str) and value not in known:
                raise ScalingError(text("scaling.one-of", name=name, value=value, known=", ".join(known), own=own))
        if options["measured"]:
            options["measured"] = _measured(options["measured"])
        choice = _of_layout(layout, options) if layout else parallelize(**options)
    except UnitError:
        print(text("scaling.unit", name=unit, value=options[unit], example=UNITS[unit]), file=sys.stderr)
        return 1
    except ScalingError as error:
        names = "|".join(options)  # as Python writes them; the command writes --per-node
        spelled = re.sub(rf"(?<!× )\b({names})(?= =)", lambda name: f"--{name[1].replace('_', '-')}", str(error))
        print(spelled, file=sys.stderr)
        return 1
    print(json.dumps(choice.as_json(), ensure_ascii=False) if as_json else choice)
    return _write(choice, file) if file else 0


def _of_layout(layout: str, options: dict) -> Prediction:
    """Return the prediction of a layout; its own letters, not options, say how it divides."""
    given = {name: options.pop(name) for name in ("tensor", "pipeline", "measured", *CHOSEN)}
    if given["measured"]:
        layout, given["measured"] = given["measured"]
    return predict_step(layout=layout, measured=given["measured"], **options)


def _number(value: str) -> "float | str":
    """Return a number, or what is none: parallelize refuses it in the reader's language."""
    try:
        return float(value)
    except ValueError:
        return value


def _count(value: str) -> "int | str":
    """Return a number, or what is none: parallelize refuses it in the reader's language."""
    return int(value) if value.isdecimal() else value


def _measured(value: str) -> tuple[str, float]:
    """Return a layout and its seconds."""
    layout, _, took = value.partition("=")
    try:
        return layout, seconds(took if took.strip()[-1:] == "s" else f"{took} s")
    except UnitError:
        raise ScalingError(text("scaling.short", layout=value)) from None


def _own_gpu(file: Path) -> Gpu:
    """Return the data sheet of a file."""
    sheet = read(file)
    numbers = all(isinstance(value, int | float) and value > 0 for value in sheet.values())
    if numbers and {*Gpu._fields[:5]} <= sheet.keys() <= {*Gpu._fields}:
        return Gpu(**sheet)
    raise ScalingError(text("scaling.own-gpu", file=file, example=OWN))


def _write(choice: Prediction, file: Path) -> int:
    try:
        file.write_text(trace_of(choice).to_chrome(), encoding="utf-8")
    except OSError as error:
        print(text("scaling.not-written", file=file, why=why(error)), file=sys.stderr)
        return 1
    stages, batches = _shown(choice.layout)
    if (stages, batches) != (choice.layout.pipeline, choice.layout.batches):
        print(text("scaling.part", stages=stages, batches=batches))
    print(text("scaling.written", file=file))
    return 0


def _shown(layout: Layout) -> tuple[int, int]:
    """Return the stages and micro-batches of a trace."""
    stages = min(layout.pipeline, MOST_STAGES)
    batches = min(layout.batches, max(stages, MOST_TASKS // (2 * stages * layout.chunks)))
    return stages, batches if layout.chunks == 1 else batches // stages * stages


def trace_of(choice: Prediction) -> Trace:
    """Return the predicted trace of a replica's pipeline, one GPU per stage.

    A trace has 16 stages and 4096 tasks at most: of a longer pipeline it shows the first micro-batches.
    """
    layout = choice.layout
    stages, micro = _shown(layout)
    table = one_f_one_b(stages, micro) if layout.chunks == 1 else interleaved(stages, micro, layout.chunks)
    compute = sum(choice.parts[name] for name in IN_A_STAGE)
    forward = compute / layout.batches / layout.chunks / (4 if layout.recompute == "full" else 3)
    backward = (3 if layout.recompute == "full" else 2) * forward
    saved = sum(item.predicted for item in choice.memory.items if item.name in ACTIVATIONS and item.predicted)
    boundary = 2 * layout.micro * choice.model.context * choice.model.width / layout.context / layout.tensor
    one = round(saved / layout.waiting / layout.chunks)
    schedule = pipeline(table, {"F": forward, "B": backward}, saved=one, boundary=round(boundary))
    nodes, wire = schedule.nodes, Bandwidth(choice.gpu.outside)
    pairs = {frozenset((a, b)) for a, b in zip(nodes, [*nodes[1:], nodes[0]], strict=True) if a != b}
    links = [link for a, b in sorted(map(sorted, pairs)) for link in both_ways(a, b, wire)]
    return cost.shared(schedule, Topology("pipeline", dict.fromkeys(nodes, "gpu"), links))


IN_A_STAGE = ("matrices", "attention", "reading", "starts", "tensor", "context", "experts")
ACTIVATIONS = ("normalization", "attention", "scores", "perceptron", "dropout", "inputs")
