"""Published runs: their layouts and speeds, and how far from these the predictions are.

``runs.csv`` has those whose source is a table on the web; papers are written out here. Each field is as published; a
run whose layout is published in part has all layouts that it may have had.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from typing import NamedTuple

from d2lps.scaling.gpu import GPUS, Gpu
from d2lps.scaling.layout import Layout, flops_per_gpu
from d2lps.scaling.models import MODELS
from d2lps.scaling.transformer import Transformer


class Published(NamedTuple):
    """A run whose speed is published.

    Args:
        name, model, layout, gpu: The model, its division, and the data sheet of the GPUs.
        flops: FLOP/s per GPU, with recomputation counted.
        layouts: The divisions that it may have had, if parts of the division are not published.
        masked: Whether the authors count the scores that a causal mask hides, although attention skips them.
        precision: As for :func:`~d2lps.scaling.kept`.
        source: Who published it: runs of one source share software and the habits of those who tuned them.
        attention, overlapped: As for :func:`~d2lps.scaling.step`.
    """

    name: str
    model: Transformer
    layout: Layout
    flops: float
    gpu: Gpu
    layouts: tuple[Layout, ...] = ()
    masked: bool = False
    precision: str = "mixed"
    source: str = ""
    attention: float | None = None
    overlapped: bool = False


def _sc21(name: str, t: int, p: int, gpus: int, batch: int, b: int, v: int, tflops: float) -> Published:
    d = gpus // (t * p)
    layout = Layout(t, p, d, v, b, batch // (d * b), recompute="full", sequence=False, overlap=p == 1)
    flops, source = tflops * 1e12, "Megatron-LM 2021"
    return Published(name, MODELS[f"gpt-{name}"], layout, flops, GPUS["a100"], precision="fp16", source=source)


# Narayanan et al., SC 2021, table 1; batch, micro-batch and chunks from Megatron-LM's run_table_1.sh.
SC21 = (
    _sc21("1.7b", 1, 1, 32, 512, 16, 1, 137),
    _sc21("3.6b", 2, 1, 64, 512, 16, 1, 138),
    _sc21("7.5b", 4, 1, 128, 512, 16, 1, 142),
    _sc21("18.4b", 8, 1, 256, 1024, 8, 1, 135),
    _sc21("39.1b", 8, 2, 512, 1536, 4, 1, 138),
    _sc21("76.1b", 8, 4, 1024, 1792, 2, 3, 140),
    _sc21("145.6b", 8, 8, 1536, 2304, 2, 2, 148),
    _sc21("310.1b", 8, 16, 1920, 2160, 1, 2, 155),
    _sc21("529.6b", 8, 35, 2520, 2520, 1, 3, 163),
    _sc21("1008b", 8, 64, 3072, 3072, 1, 1, 163),
)


def _mlsys23(name: str, p: int, b: int, batch: int, v: int, seconds: float, recompute: str) -> Published:
    model = MODELS[f"gpt-{name}"]
    layout = Layout(8, p, 1, v, b, batch // b, recompute=recompute, sequence=recompute == "selective")
    flops = flops_per_gpu(model, layout, recompute) / seconds
    name = f"gpt-{name}, n = {layout.gpus}, recompute={recompute}"
    return Published(name, model, layout, flops, GPUS["a100"], source="Megatron-LM 2022")


# Korthikanti et al., 2022, tables 3 and 5: seconds of a step with full and with selective recomputation.
MLSYS23 = tuple(
    _mlsys23(name, p, b, batch, v, each, recompute)
    for name, p, b, batch, v, full, selective in (
        ("22b", 1, 4, 4, 1, 1.42, 1.10),
        ("175b", 8, 1, 64, 3, 18.13, 13.75),
        ("529.6b", 35, 1, 280, 3, 49.05, 37.83),
        ("1008b", 64, 1, 512, 1, 94.42, 71.49),
    )
    for recompute, each in (("full", full), ("selective", selective))
)


def _megatron(name: str, heads: int, width: int, layers: int, t: int, p: int, batch: int, tflops: float) -> Published:
    model = Transformer(layers, width, heads, 4096, 131072, tied=False, dropout=False, fused=True)
    layouts = tuple(
        Layout(t, p, 48, v, b, batch // (48 * b), stage=1)
        for b in (1, 2, 4)
        for v in range(1, layers // p + 1 if p > 1 else 2)
        if layers % (p * v) == 0 and (v == 1 or batch // (48 * b) % p == 0)
    )
    name = f"gpt-{name}, n = {layouts[0].gpus}"
    flops, source = tflops * 1e12, "Megatron-LM 2024"
    return Published(name, model, layouts[0], flops, GPUS["h100"], layouts, True, "bf16", source, overlapped=True)


# Megatron-LM, images/model_table.png of its README, which gives no b, v and recomputation: none is assumed.
MEGATRON = (
    _megatron("1.7b", 16, 2048, 24, 1, 1, 192, 408.8),
    _megatron("7.1b", 32, 4096, 30, 2, 1, 192, 465.9),
    _megatron("16b", 48, 6144, 32, 4, 1, 192, 489.1),
    _megatron("32b", 56, 7168, 48, 8, 1, 192, 459.6),
    _megatron("70b", 64, 8192, 84, 8, 2, 384, 419.7),
    _megatron("119b", 80, 10240, 92, 8, 4, 768, 420.5),
    _megatron("177b", 96, 12288, 96, 8, 6, 1152, 432.8),
    _megatron("314b", 128, 16384, 96, 8, 8, 1536, 474.4),
    _megatron("462b", 144, 18432, 112, 8, 16, 3072, 459.9),
)


def _llama(gpus: int, s: int, batch: int, context: int, tflops: float) -> Published:
    model = MODELS["llama3-405b"]
    d = gpus // (8 * 16 * context)
    layout = Layout(8, 16, d, 1, 1, batch // d, stage=1, context=context)
    name, layouts = f"llama3-405b, n = {gpus}, s = {s}", tuple(layout._replace(chunks=v) for v in (1, 2, 4, 8))
    model, flops = replace(model, context=s), tflops * 1e12
    return Published(name, model, layout, flops, GPUS["h100"], layouts, precision="bf16", source="Llama 3")


# Grattafiori et al., "The Llama 3 herd of models", 2024, table 4, which does not give v.
LLAMA3 = (_llama(8192, 8192, 2048, 1, 430), _llama(16384, 8192, 2048, 1, 400), _llama(16384, 131072, 128, 16, 380))

# DeepSeek-AI, "DeepSeek-V3 technical report", 2024: 180 000 GPU hours per 10¹² tokens; queries, keys and values
# are computed again (section 3.2.3); b = 1 is assumed.
_V3, _H800 = MODELS["deepseek-v3"], GPUS["h100"]._replace(inside=200e9)  # with half the NVLinks
_SPEED = 1e12 * _V3.flops_per_token("selective") / (180_000 * 3600)
_CUT = Layout(1, 16, 128, 1, 1, 120, stage=1, expert=64, recompute="selective")
DEEPSEEK = Published("deepseek-v3, n = 2048", _V3, _CUT, _SPEED, _H800, precision="fp8", source="DeepSeek-V3")


def _mpt(layers: int, width: int, heads: int) -> Transformer:
    """Return a model of llm-foundry's scripts/train/yamls/pretrain."""
    return Transformer(layers, width, heads, 2048, 50368, biases=False, dropout=False, fused=True)


def _nemo(layers: int, width: int, heads: int) -> Transformer:
    """Return a GPT of NeMo."""
    return Transformer(layers, width, heads, 2048, 51200, dropout=False, fused=True)


OTHERS = {
    "mpt-125m": _mpt(12, 768, 12),
    "mpt-350m": _mpt(24, 1024, 16),
    "mpt-760m": _mpt(24, 1536, 12),
    "mpt-1b": _mpt(24, 2048, 16),
    "mpt-3b": _mpt(32, 2560, 20),
    "mpt-7b": _mpt(32, 4096, 32),
    "mpt-13b": _mpt(40, 5120, 40),
    "mpt-30b": _mpt(48, 7168, 56),
    "mpt-70b": _mpt(80, 8192, 64),
    "gpt3-5b": _nemo(24, 4096, 32),
    "gpt3-20b": _nemo(44, 6144, 48),
    "gpt3-175b": _nemo(96, 12288, 96),
    "llama2-13b": replace(MODELS["llama2-7b"], layers=40, width=5120, heads=40, groups=40, hidden=13824),
}
OVERLAPPED = ("NeMo", "Megatron-Bridge")  # sources whose stages send while they compute
# GPUs that differ from a data sheet: half the memory; and 500 W with HBM2e, whose authors say that the real peak lies
# between those of H100 SXM and H100 NVL (835 TFLOP/s): products are as much slower as the smaller one.
_LESS = GPUS["h100"]
SHEETS = GPUS | {
    "a100-40gb": GPUS["a100"]._replace(memory=40_000_000_000, reading=1.555e12),
    "h100-500w": _LESS._replace(
        memory=96_000_000_000,
        reading=2.4e12,
        products=_LESS.products * 835 / 989,
        products8=_LESS.products8 * 835 / 989,
    ),
}


def _table() -> Iterator[Published]:
    """Yield the runs of ``runs.csv``, whose comments name the sources."""
    text = resources.files("d2lps").joinpath("scaling", "runs.csv").read_text("utf-8")
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        sizes = {name: int(row[name]) for name in "gpus s t p c e v b batch z".split()}
        n, t, p, c, b = (sizes[name] for name in "gpus t p c b".split())
        model = replace((MODELS | OTHERS)[row["model"]], context=sizes["s"])
        d = n // (t * p * c)
        m = max(1, round(sizes["batch"] / (d * b)))
        layouts = tuple(
            Layout(t, p, d, sizes["v"], b, m, sizes["z"], each, True, c, True, sizes["e"], model.gated)
            for each in row["recompute"].split("|")
        )
        yield Published(
            f"{row['model']}, {row['gpu']}, n = {n}, s = {sizes['s']}, {layouts[0]}",
            model,
            layouts[0],
            float(row["tokens"]) * model.flops_per_token(layouts[0].recompute),
            SHEETS[row["gpu"]],
            layouts if len(layouts) > 1 else (),
            False,
            row["precision"],
            row["source"],
            float(row["attention"]) if row["attention"] else None,
            row["source"] in OVERLAPPED,
        )


TABLE = (*_table(),)
RUNS = (*SC21, *MLSYS23, *MEGATRON, *LLAMA3, DEEPSEEK, *TABLE)
