"""Every error that a learner can cause is in their language, with the English words needed to search for it."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import d2lps
from d2lps import kvstore, units
from d2lps.algorithms.placement import Placement, PlacementError
from d2lps.carriers.rendezvous import NoRanks, ProcessesError
from d2lps.carriers.tensors import TensorError
from d2lps.kvstore import Refused
from d2lps.messages import LANGUAGES
from d2lps.messages.raised import Brief
from d2lps.scaling import ScalingError
from d2lps.topology.links import TopologyError
from d2lps.trace import Trace, TraceError
from d2lps.units import UnitError
from d2lps.view.drawing import DrawingError

HOME = Path(d2lps.__file__).parent
GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]
PLAN = d2lps.sharded(GPUS)
SERVER = d2lps.pcie_server(4)

LINE = d2lps.Topology(
    "line", dict.fromkeys("abc", "gpu"), [d2lps.Link(*ends, "1 GB/s") for ends in ("ab", "ba", "bc", "cb")]
)


def trace() -> Trace:
    return d2lps.cost.shared(PLAN, SERVER, "160 MB")


def run(*tensors, plan=PLAN, **options):
    return d2lps.run(plan, dict(zip(GPUS, tensors, strict=False)), **options)


def ones(*shape, **options) -> torch.Tensor:
    return torch.ones(*shape, **options)


def store(do, kind: str = "local", **options):
    with kvstore.create(kind, **options) as made:
        made.init("w", ones(2))
        return do(made)


# The act, the error, and English words that stay in every language.
CAUSES = [
    (lambda: d2lps.pcie_server(4, 16), UnitError, "bandwidth 128 Gbit/s"),
    (lambda: d2lps.pcie_server(4, "16 Gb/s"), UnitError, "bandwidth"),
    (lambda: d2lps.pcie_server(4, "16 GB"), UnitError, "bandwidth"),
    (lambda: d2lps.pcie_server(4, "16 gb/s"), UnitError, "bandwidth"),
    (lambda: d2lps.pcie_server(4, "-16 GB/s"), UnitError, "bandwidth"),
    (lambda: d2lps.pcie_server(4, "fast"), UnitError, "bandwidth"),
    (lambda: d2lps.pcie_server(4, "16 GB/s", latency="10"), UnitError, "time"),
    (lambda: d2lps.pcie_server(4, "16 GB/s", latency=-1), UnitError, "time"),
    (lambda: units.size("1e999 MB"), UnitError, "size"),
    (lambda: d2lps.cost.shared(PLAN, SERVER, 160), UnitError, "size 160"),
    (lambda: d2lps.cost.shared(PLAN, SERVER, 160e6), UnitError, "size"),
    (lambda: d2lps.cost.shared(PLAN, SERVER, "160 MB/s"), UnitError, "size"),
    (lambda: d2lps.cost.shared(PLAN, SERVER, -1), UnitError, "size"),
    (lambda: d2lps.cost.shared(PLAN, SERVER, "1 bit"), UnitError, "size"),
    (lambda: d2lps.cost.shared(PLAN, None, "160 MB"), TopologyError, "Topology"),
    (lambda: d2lps.cost.shared(PLAN, d2lps.pcie_server(2), "160 MB"), TopologyError, "gpu2 node"),
    (lambda: d2lps.pcie_server(0), TopologyError, "gpus"),
    (lambda: d2lps.pcie_server(4, ["16 GB/s"]), TopologyError, "bandwidth"),
    (lambda: d2lps.one_memory(["memory"], "1 GB/s"), TopologyError, "memory"),
    (lambda: d2lps.Link("a", "b", "1 GB/s", count=0), TopologyError, "link count"),
    (lambda: d2lps.Topology("t", {}, []), TopologyError, "topology"),
    (lambda: d2lps.Topology("t", {"a": "x"}, []), TopologyError, "kind"),
    (lambda: d2lps.Topology("t", {"a": "gpu"}, [d2lps.Link("a", "a", "1 GB/s")]), TopologyError, "link"),
    (lambda: d2lps.Topology("t", {"a": "gpu", "b": "gpu"}, []).route("a", "b"), TopologyError, "route"),
    (lambda: d2lps.rings(LINE), TopologyError, "ring"),
    (lambda: d2lps.Topology.from_nvidia_smi("hello"), TopologyError, "nvidia-smi"),
    (lambda: d2lps.Topology.from_nvidia_smi("GPU0 X"), TopologyError, "nvidia-smi"),
    (lambda: trace().bytes_sent("gpu9"), TraceError, "trace gpu9"),
    (lambda: trace().busy("gpu0", "gpu1"), TraceError, "link"),
    (lambda: Trace.from_json("{}"), TraceError, "trace"),
    (lambda: d2lps.watch([trace()]), DrawingError, "watch(*traces)"),
    (lambda: d2lps.watch(), DrawingError, "watch"),
    (lambda: d2lps.draw(7), DrawingError, "trace"),
    (lambda: run(ones(4)), TensorError, "tensor"),
    (lambda: run(ones(4), ones(4), ones(4), ones(5)), TensorError, "size"),
    (lambda: run(ones(4), ones(4), ones(4), ones(4).double()), TensorError, "dtype"),
    (lambda: run(ones(2, 2), *[ones(4) for _ in range(3)]), TensorError, ".reshape(-1)"),
    (lambda: run([1.0], *[ones(4) for _ in range(3)]), TensorError, "torch.Tensor"),
    (lambda: run(*[ones(4)] * 4), TensorError, "share memory"),
    (lambda: d2lps.run(PLAN, ones(4)), TensorError, "tensors"),
    (lambda: d2lps.run("plan", {}), TensorError, "Plan"),
    (lambda: run(*[ones(4) for _ in GPUS], reduce="median"), TensorError, "Reduction"),
    (lambda: run(*[ones(4, dtype=torch.bool) for _ in GPUS]), TensorError, "torch.bool"),
    (lambda: d2lps.Here([]), TensorError, "Here"),
    (lambda: d2lps.Here(["gpu"]), TensorError, "device"),
    (lambda: Placement(0), PlacementError, "servers"),
    (lambda: d2lps.Processes(), NoRanks, "d2lps.ranks(4) %%px torchrun"),
    (lambda: d2lps.Processes(deadline=-1), ProcessesError, "deadline"),
    (lambda: d2lps.ranks(0), ProcessesError, "ranks"),
    (lambda: kvstore.create("dist"), NoRanks, "d2lps.ranks(4)"),
    (lambda: kvstore.create("global"), Refused, "kind dist_sync"),
    (lambda: kvstore.cluster("dist_ssp", staleness=-1), Refused, "staleness push worker"),
    (lambda: kvstore.create("local", servers=2), Refused, "servers"),
    (lambda: kvstore.create("local", engine="other"), Refused, "engine"),
    (lambda: store(lambda made: made.push("v", ones(2))), Refused, "key init worker"),
    (lambda: store(lambda made: made.init("w", ones(2))), Refused, "key pull push"),
    (lambda: store(lambda made: made.push("w", ones(3))), Refused, "key shape"),
    (lambda: store(lambda made: made.push("w", 3)), Refused, "NumPy"),
    (lambda: store(lambda made: made.push("w", [])), Refused, ""),
    (lambda: store(lambda made: made.push(1.5, ones(2))), Refused, "key"),
    (lambda: store(lambda made: made.push(["w", "w"], [ones(2), ones(2)])), Refused, "key"),
    (lambda: store(lambda made: made.pull("w")), Refused, "pull out"),
    (lambda: store(lambda made: made.set_optimizer("sgdd", lr=0.1)), Refused, "optimizer"),
    (lambda: store(lambda made: made.set_optimizer("sgd")), Refused, "set_optimizer"),
    (lambda: store(lambda made: made.set_optimizer("sgd", lr="x")), Refused, "lr"),
    (lambda: store(lambda made: made.set_optimizer("sgd", lr=0.1, beta=1)), Refused, "rescale_grad"),
    (lambda: store(lambda made: made.trace()), Refused, "trace"),
    (lambda: store(lambda made: made.trace("w"), "device"), Refused, "push"),
    (lambda: d2lps.parallelize("gpt5", 8), ScalingError, "Transformer gpt3"),
    (lambda: d2lps.parallelize("gpt3", 8), ScalingError, "GPU 72 GB"),
    (lambda: d2lps.parallelize("gpt3", 8, tensor=7), ScalingError, "tensor heads 96"),
    (lambda: d2lps.parallelize("gpt3", 1024, batch=1), ScalingError, "GPU 1024"),
    (lambda: d2lps.memory("gpt3", tensors=8), ScalingError, "tensors"),
    (lambda: d2lps.memory("gpt3", stage=4), ScalingError, "ZeRO stage"),
    (lambda: d2lps.memory("gpt3", precision="int8"), ScalingError, "precision mixed"),
    (lambda: d2lps.memory(torch.nn.Linear(2, 2), stage=1), ScalingError, "Transformer stage"),
    (lambda: d2lps.memory("gpt3", 3), ScalingError, "batch int"),
    (lambda: d2lps.check_exercise("nothing", d2lps.ring), ValueError, "nothing"),
    (lambda: d2lps.Plan(GPUS, {"g": 0.5}, []), d2lps.PlanError, ""),
]
VIETNAMESE = re.compile("[ăâđêôơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ]", re.IGNORECASE)
CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.mark.parametrize("cause, kind, words", CAUSES, ids=[str(i) for i in range(len(CAUSES))])
def test_errors_of_learners_are_in_their_language(cause, kind, words, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for language in LANGUAGES:
        d2lps.speak(language)
        with pytest.raises(kind) as caught:
            cause()
        sentence = str(caught.value)
        assert isinstance(caught.value, Brief)
        assert bool(VIETNAMESE.search(sentence)) == (language == "vi"), sentence
        assert bool(CHINESE.search(sentence)) == (language == "zh"), sentence
        assert all(word in sentence for word in words.split()), (sentence, words)


WITHOUT_FILES = """
import os, resource
import d2lps
from d2lps import {imports}
{speak}
least = len(os.listdir("/dev/fd")) - 1 + {more}
resource.setrlimit(resource.RLIMIT_NOFILE, (least, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    {cause}
except Exception as error:
    print(type(error).__name__, ascii(str(error)))
"""
LINK = "d2lps.Link('a', 'b', 16)"
LOADED = "kvstore\nimport d2lps.kvstore.in_process, tempfile\ntempfile.gettempdir()"
STORE = "kvstore.cluster(workers=3, servers=2, deadline=1)"


@pytest.mark.parametrize(
    "language, cause, imports, more, kind, words",
    [
        *((language, LINK, "Link", 0, "UnitError", ["bandwidth"]) for language in LANGUAGES),
        ("vi", STORE, LOADED, 9, "ServerLost", ["ulimit -n", "Too many open files"]),  # for a connection
        ("zh", STORE, LOADED, 2, "Refused", ["ulimit -n", "Too many open files"]),  # for servers
    ],
)
def test_an_error_needs_no_file_to_say_what_happened(cause, imports, more, kind, words, language):
    speak = "" if language == "en" else f"d2lps.speak({language!r})"
    code = WITHOUT_FILES.format(cause=cause, imports=imports, more=more, speak=speak)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    named, _, sentence = done.stdout.partition(" ")
    assert named == kind, done.stdout + done.stderr
    sentence = ast.literal_eval(sentence)
    assert bool(VIETNAMESE.search(sentence)) == (language == "vi"), sentence
    assert bool(CHINESE.search(sentence)) == (language == "zh"), sentence
    assert all(word in sentence for word in words), sentence


def test_an_error_for_the_readers_of_all_languages_needs_no_file():
    code = WITHOUT_FILES.format(cause=LINK, imports="Link", more=0, speak="")
    environment = os.environ | {"D2LPS_ALL_LANGUAGES": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    sentence = ast.literal_eval(done.stdout.partition(" ")[2] or repr(done.stderr))
    assert VIETNAMESE.search(sentence) and CHINESE.search(sentence) and "16 GB/s" in sentence, sentence


# Errors that only operators see, or authors of their own server or frames: addresses, secrets, files, memory.
OPERATORS = re.compile(
    r"kvstore/server/|kvstore/wire/(shared_buffer|handshake)\.py|kvstore/checkpoint\.py|carriers/segments\.py"
)
TYPED = "UnitError TopologyError TensorError TraceError DrawingError PlacementError ProcessesError NoRanks RankLost "
TYPED += "Refused KVError WorkerLost ServerLost Timeout Unknown ScalingError"
ENGLISH = {
    "carriers/ranks.py": 2,  # ports and addresses of torchrun
    "notebook/ranks/notebook.py": 1,  # hands on what a rank has raised
    "kvstore/values.py": 2,  # hand on what torch says
    "kvstore/worker/client.py": 4,  # secrets, what cannot be sent, and answers that no server gives
}


def test_no_other_sentence_is_english_alone():
    found = {}
    for path in HOME.rglob("*.py"):
        name = path.relative_to(HOME).as_posix()
        if OPERATORS.search(name):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = getattr(getattr(node, "func", None), "id", None)
            literal = (
                isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
            )
            if called in TYPED.split() and literal:
                found[name] = found.get(name, 0) + 1
    assert found == ENGLISH
