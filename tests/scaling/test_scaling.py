"""Large models: published counts, memory and speeds, and the layouts that are chosen."""

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import chain, groupby, product
from math import log, log1p
from pathlib import Path
from statistics import median

import pytest

from d2lps import Transformer, all_to_all, memory, parallelize, rail_rings, rails, ring
from d2lps.__main__ import main
from d2lps.cluster import busbw
from d2lps.messages import LANGUAGES, speak
from d2lps.scaling import (
    GPUS,
    LLAMA3,
    MEGATRON,
    MLSYS23,
    MODELS,
    SC21,
    Layout,
    ScalingError,
    calibrate,
    error,
    kept,
    sent,
    step,
    throughput,
)
from d2lps.scaling.choosing import _layouts
from d2lps.scaling.command import IN_A_STAGE, trace_of
from d2lps.scaling.interval import like, spread, tried
from d2lps.scaling.layout import check
from d2lps.scaling.runs import OTHERS, TABLE
from d2lps.scaling.transformer import flops_of
from d2lps.schedule import interleaved, one_f_one_b, pipeline
from d2lps.topology.nccl import PROTOCOL
from d2lps.units import Bandwidth, UnitError

GPT3, LLAMA = MODELS["gpt3"], MODELS["llama3-405b"]
L, H, A, S, V = GPT3.layers, GPT3.width, GPT3.heads, GPT3.context, GPT3.vocabulary

# ---------------------------------------------------------------- counts


def test_parameters_of_gpt3():
    assert GPT3.parameters == 12 * L * H**2 + 13 * L * H + (V + S) * H + 2 * H
    assert GPT3.parameters == pytest.approx(174.6e9, rel=1e-3)
    assert 16 * GPT3.parameters == pytest.approx(2.8e12, rel=0.01)


@pytest.mark.parametrize("run", [*SC21, *MLSYS23, *MEGATRON], ids=lambda run: run.name)
def test_parameters_of_published_models(run):
    size = run.name.removeprefix("gpt-").split("b")[0]
    assert run.model.parameters == pytest.approx(float(size) * 1e9, abs=0.06e9 if "." in size else 0.55e9)


def test_flops_per_token():
    assert GPT3.flops_per_token() == pytest.approx(6 * GPT3.parameters + 12 * L * H * S, rel=1e-3)
    assert 12 * L * H * S / (6 * GPT3.parameters) == pytest.approx(0.028, abs=5e-4)
    assert GPT3.flops_per_token() == pytest.approx(72 * L * H**2 * (1 + S / (6 * H) + V / (12 * L * H)))
    assert GPT3.flops_per_token("full") == pytest.approx(96 * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H)))
    days = 300e9 * 8 * GPT3.parameters / (1024 * 140e12) / 86400
    assert days == pytest.approx(33.9, abs=0.15)


STATISTICS = 16 / H  # of two normalizations, which Korthikanti et al. leave out


@pytest.mark.parametrize(
    "options, whole, divided, gigabytes",
    [
        ({}, 34 + 5 * A * S / H + STATISTICS, 0, 275),
        ({"tensor": 8}, 10 + STATISTICS, 24 + 5 * A * S / H, 55.6),
        ({"tensor": 8, "sequence": True}, 0, 34 + 5 * A * S / H + STATISTICS, 34.4),
        ({"tensor": 8, "sequence": True, "recompute": "selective"}, 0, 34 + STATISTICS, 10.3),
        ({"tensor": 8, "recompute": "full"}, 2, 0, 4.8),
        ({"tensor": 8, "sequence": True, "recompute": "full"}, 0, 2, 0.604),
    ],
)
def test_activations_of_a_layer(options, whole, divided, gigabytes):
    saved = sum(GPT3.activations(**options).values())
    assert saved == pytest.approx(S * H * (whole + divided / 8))
    assert L * saved == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_recomputed_layers_of_torchtitan_fit_the_memory_that_is_measured():
    # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 4: 71.9 GiB, with buffers that the ledger omits
    layout = Layout(8, 1, 32, 1, 16, 1, stage=3, recompute="full")
    assert 0.5 < sum(kept(MODELS["llama3-70b"], layout, "bf16").values()) / (71.9 * 2**30) < 1


def test_activations_of_llama3():
    h, tokens = LLAMA.width, LLAMA.context
    saved = {kind: nbytes / tokens for kind, nbytes in LLAMA.activations().items()}
    assert saved == {
        "normalization": 2 * (2 * h + 4),
        "attention": 2 * (h + h + h / 16 + h / 16 + h) + 4 * 128,
        "perceptron": 2 * (h + 4 * 53248),
    }


# ---------------------------------------------------------------- bytes sent


@pytest.mark.parametrize(
    "stage, batches, times", [(0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 3), (0, 4, 2), (2, 4, 5), (3, 4, 12)]
)
def test_bytes_of_zero(stage, batches, times):
    data = sent(GPT3, Layout(data=64, stage=stage, batches=batches))["data"]
    assert data == pytest.approx(times * 63 / 64 * 2 * GPT3.parameters)


def test_bytes_of_tensor_parallelism_and_pipelines():
    half = 7 / 8 * 2 * S * H * L
    halves = {(False, "none"): 8, (False, "full"): 12, (True, "none"): 10, (True, "full"): 14}
    for (sequence, recompute), count in halves.items():
        layout = Layout(tensor=8, recompute=recompute, sequence=sequence)
        assert sent(GPT3, layout)["tensor"] == pytest.approx(count * half)
    assert sent(GPT3, Layout(pipeline=4, batches=8, chunks=2))["pipeline"] == 8 * 2 * 2 * 2 * S * H
    assert sent(GPT3, Layout(data=8))["pipeline"] == 0


# ---------------------------------------------------------------- the ledger


@pytest.mark.parametrize("stage, gigabytes", [(0, 120), (1, 31.4), (2, 16.6), (3, 1.875)])
def test_the_table_of_zero(stage, gigabytes):
    assert memory(7.5e9, data=64, stage=stage).predicted == pytest.approx(gigabytes * 1e9, rel=3e-3)


def test_gradients_in_32_bits_make_18_bytes_and_6_with_12_divided():
    assert memory(1e9, precision="bf16").predicted == 18e9
    assert memory(1e9, precision="bf16", data=8, stage=1).predicted == pytest.approx((6 + 12 / 8) * 1e9)


def test_marks():
    ledger = memory(7.5e9)
    assert {item.name: item.mark for item in ledger.items} == {
        "weights": "predicted",
        "gradients": "predicted",
        "optimizer": "predicted",
        "activations": "not included",
        "buffers": "not included",
    }
    speak("zh")
    assert "未计入" in str(ledger) and "<table>" in ledger._repr_html_()


def test_a_gathered_layer_and_recomputation_have_lines():
    plain, gathered = memory("gpt3", data=8), memory("gpt3", data=8, stage=3, recompute="full")
    assert gathered["gathered"].predicted == 2 * 2 * GPT3.layer_parameters
    assert gathered["inputs"].predicted == 2 * S * H * L
    assert gathered["recomputed"].predicted == pytest.approx(sum(GPT3.activations().values()))
    with pytest.raises(KeyError):
        plain["gathered"]


def test_the_first_stage_has_its_layers_and_the_embedding():
    tied, own = memory("gpt3", pipeline=4)["weights"].predicted, memory("llama3-405b", pipeline=16)["weights"].predicted
    assert tied == 2 * (L // 4 * GPT3.layer_parameters + GPT3.end_parameters)
    assert own == 2 * (8 * LLAMA.layer_parameters + LLAMA.end_parameters // 2)


@pytest.mark.parametrize("stages, micro, chunks", [(4, 8, 1), (4, 2, 1), (4, 8, 2), (1, 3, 1)])
def test_waiting_micro_batches_are_those_of_the_schedule(stages, micro, chunks):
    table = one_f_one_b(stages, micro) if chunks == 1 else interleaved(stages, micro, chunks)
    peak = pipeline(table, saved=1).peak["gpu0"] / chunks
    assert Layout(pipeline=stages, batches=micro, chunks=chunks).waiting == peak


def test_published_layouts_fit():
    for run in (*SC21, *MLSYS23[1::2]):
        assert sum(kept(run.model, run.layout).values()) < 72e9


# ---------------------------------------------------------------- speed


def test_ten_published_rows_with_one_constant():
    errors = [error(run)[0] for run in SC21]
    assert errors[0] == pytest.approx(0, abs=1e-9)
    assert sum(map(abs, errors[1:])) / 9 <= 0.023
    assert max(map(abs, errors)) == -errors[-1] == pytest.approx(0.064, abs=5e-4)
    assert calibrate() == pytest.approx(0.774, abs=1e-3)


def test_the_counted_crossings_predict_the_ten_rows_best():
    means = {crossings: sum(abs(error(run, crossings)[0]) for run in SC21) / 9 for crossings in range(5, 11)}
    assert min(means, key=means.__getitem__) == 7


def test_published_times_have_the_published_shares_of_the_peak():
    for run, share in zip(MLSYS23[1::2], (0.415, 0.514, 0.560, 0.563), strict=True):
        counted = run.flops * run.model.flops_per_token() / run.model.flops_per_token("selective")
        assert counted / 312e12 == pytest.approx(share, abs=0.003)
    faster = [full.flops / 8 * 7 / part.flops for full, part in zip(MLSYS23[::2], MLSYS23[1::2], strict=True)]
    assert all(0.8 < ratio < 0.95 for ratio in faster)


def test_published_speeds_have_the_published_sums():
    petaflops = (19.6, 44.7, 93.9, 176.5, 322.3, 645.9, 997.2, 1457.4, 2825.6)
    for run, total in zip(MEGATRON, petaflops, strict=True):
        assert run.flops * run.layout.gpus / 1e15 == pytest.approx(total, abs=0.06)
        assert {layout.gpus for layout in run.layouts} == {run.layout.gpus}
        for layout in run.layouts:
            check(run.model, layout)


def test_both_kinds_of_recomputation_are_predicted_within_14_percent():
    errors = [error(run)[0] for run in MLSYS23]
    assert max(map(abs, errors)) < 0.14 and min(errors) == errors[-2]


def test_all_but_the_smallest_model_on_h100_are_within_13_percent():
    best = [error(run)[1] for run in MEGATRON]
    assert best[0] == pytest.approx(0.266, abs=2e-3) and max(map(abs, best[1:])) < 0.13


def test_runs_of_the_table_are_as_many_tokens_as_published():
    of_source = Counter(run.source for run in TABLE)
    assert of_source == {"llm-foundry": 216, "torchtitan": 12, "NeMo": 9, "Megatron-Bridge": 13 - 2}
    for run in TABLE:
        for layout in run.layouts or (run.layout,):
            check(run.model, layout)


@pytest.mark.parametrize(
    "name, parameters",
    [("mpt-125m", 125_311_488), ("mpt-1b", 1_315_950_592), ("mpt-7b", 6_658_859_008), ("mpt-70b", 64_862_437_376)],
)
def test_models_of_llm_foundry_have_as_many_parameters_as_published(name, parameters):
    assert OTHERS[name].parameters == pytest.approx(parameters, rel=1e-3)


# ---------------------------------------------------------------- the interval


def test_the_interval_of_dense_models_held_in_four_of_five_runs_of_other_sources():
    for narrow, median_error in ((False, 0.05), (True, 0.10)):
        found = tried(narrow=narrow)
        assert sum(each.inside for each in found) / len(found) >= 0.8
        assert median(abs(each.error) for each in found) <= median_error


def test_the_interval_is_made_without_the_runs_own_source():
    found = tried()
    for each in found:
        others = [other for other in like() if other.source != each.run.source]
        counts = Counter(other.source for other in others)
        share = calibrate(run=MLSYS23[0]) if each.run.source == SC21[0].source else None
        far = [abs(log1p(error(other, share=share)[1])) for other in others]
        within = sum(
            1 / counts[other.source] for other, off in zip(others, far, strict=True) if off <= log(each.far) + 1e-12
        )
        assert within >= 0.9 * len(counts) - 1e-9
        assert each.inside == (1 / each.far <= 1 + each.error <= each.far)
        break  # one source is enough: each run of it has the same others


def test_sharded_runs_are_within_a_quarter():
    errors = [each.error for each in tried() if each.run.layout.stage > 1]
    assert len(errors) > 200 and sum(abs(off) <= 0.25 for off in errors) / len(errors) > 0.95


def test_the_interval_of_models_with_experts_is_wider_and_says_so():
    dense, routed = (spread(MODELS[name], GPUS["h100"]) for name in ("llama3-70b", "mixtral-8x7b"))
    assert dense.far < 1.2 < 2 < routed.far and routed.near == dense.near
    assert "can hardly be predicted" in parallelize("mixtral-8x7b", 64, gpu="h100").doubt
    assert "None of these runs had such GPUs" in parallelize("llama3-70b", 64, gpu="mi300x").doubt


def test_no_interval_is_faster_than_the_peak():
    fast = parallelize("llama3-70b", 64, gpu=GPUS["h100"]._replace(products=0.99 * 989e12), batch=1024)
    assert fast.flops[1] <= GPUS["h100"].peak * (1 + 1e-9)


def test_runs_of_one_model_differ_by_less_than_the_third_root_of_the_error():
    for pair in (*zip(MLSYS23[::2], MLSYS23[1::2], strict=True), LLAMA3[:2]):
        one, other = (1 + error(run)[1] for run in pair)
        assert max(one / other, other / one) < spread(pair[0].model, pair[0].gpu).near


def test_without_the_time_for_memory_the_rows_are_missed():
    errors = [abs(error(run, crossings=0)[0]) for run in SC21[1:]]
    assert sum(errors) / 9 == pytest.approx(0.17, abs=0.005) and max(errors) == pytest.approx(0.295, abs=0.005)


def test_saved_bytes_cross_the_memory_five_times_or_seven_if_recomputed():
    model, gpu = MODELS["gpt-7.5b"], GPUS["a100"]
    times = {kind: step(model, Layout(recompute=kind), gpu)["reading"] for kind in ("none", "selective", "full")}
    memory = 0.9 * gpu.reading
    logits = 28 * model.context * model.vocabulary / memory
    scores = model.activations()["scores"] * model.layers / memory
    assert (times["none"] - logits) * 7 == pytest.approx((times["full"] - logits) * 5)
    assert times["selective"] == pytest.approx(times["none"] + 2 * scores)


def test_each_product_writes_its_result():
    model, gpu = MODELS["llama3-8b"], GPUS["h100"]._replace(reading=1e9)  # so slow that nothing else counts
    (h, f, tokens), kv = (4096, 14336, 8192), 2 * 1024
    columns, inner = (h + kv) + h + 2 * f + h, h + h + h + f
    weights = h * (h + kv) + h * h + h * 2 * f + f * h
    nbytes = 32 * (2 * tokens * (columns + inner) + 2 * 4 * weights)
    products = sum(flops_of(model)[::2]) * tokens / (calibrate() * gpu.products)
    found = step(model, Layout(), gpu, precision="bf16")["matrices"]
    assert found == pytest.approx(products + nbytes / 0.9e9, rel=1e-6)


def test_small_layers_are_slow_to_start():
    model = Transformer(24, 512, 8, 128, 1000, fused=True, dropout=False)
    parts = step(model, Layout(), GPUS["h100"])
    assert parts["starts"] == pytest.approx(24 * 36 * 3.8e-6)
    assert parts["starts"] > 0.5 * sum(parts.values())


def test_attention_that_is_not_made_for_the_gpu_takes_longer():
    model = replace(MODELS["llama3-8b"], context=131072)
    best, other = (step(model, Layout(), GPUS["h100"], attention=share)["attention"] for share in (None, 0.35))
    assert other / best == pytest.approx(0.6 / 0.35)


@pytest.mark.parametrize("stage, batches", [(0, 4), (1, 4), (2, 4), (3, 4)])
def test_gradients_are_hidden_behind_half_a_micro_batch_or_each(stage, batches):
    model, gpu = MODELS["gpt-39.1b"], GPUS["a100"]._replace(outside=2e9)
    layout = Layout(data=64, batches=batches, stage=stage)
    hidden, shown = (step(model, layout._replace(overlap=o), gpu) for o in (True, False))
    one = sum(shown[name] for name in IN_A_STAGE) / batches
    assert shown["data"] - hidden["data"] == pytest.approx(0.85 * one / 2 * (batches if stage > 1 else 1))


CLUSTERS = list(product((2, 4, 8), range(1, 5), ("h100", "l40s")))  # GPUs of a node, nodes, GPU
SMALL = Transformer(8, 64, 8, 128, 1000)


@cache
def took(places, per_node, nodes, gpu, plan_of):
    """Return the seconds per byte of a plan on rails and its latency, as busbw predicts them, and bytes per GPU."""
    hosts = [[f"host{node}/gpu{place % per_node}" for place in group] for node, group in places]
    card, inside = Bandwidth(GPUS[gpu].outside), Bandwidth(GPUS[gpu].inside)
    plan, place = plan_of(hosts), rails(nodes, per_node, card, inside, busbw.ACROSS, busbw.INSIDE)
    return *busbw.seconds(plan, place), 2 - 2 / len(plan.nodes)


def rings(hosts):
    return rail_rings(hosts) if len(hosts) > 1 else ring(hosts[0])


def nodes_of(places, per_node):
    """Return the node of each GPU number, with its numbers, if all nodes have equally many; else None."""
    found = tuple((node, tuple(each)) for node, each in groupby(places, lambda place: place // per_node))
    return found if len({len(each) for _, each in found}) == 1 else None


def test_replicas_exchange_as_busbw_predicts_for_rail_rings_in_200_layouts():
    compared = 0
    for (per_node, nodes, gpu), t, p, c in product(CLUSTERS, (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4)):
        d, rest = divmod(per_node * nodes, t * p * c)
        if t > per_node or rest or c * d == 1:
            continue
        for dimension, places in (  # from inside to outside: tensor, context, pipeline, data
            ("data", [t * (i + c * p * j) for j in range(d) for i in range(c)]),
            ("context", [t * i for i in range(c)]),
        ):
            if len(places) == 1 or not (found := nodes_of(places, per_node)):
                continue
            each, way, factor = took(found, per_node, nodes, gpu, rings)
            whole, gathered = (Layout(t, p, d, stage=stage, overlap=False, context=c) for stage in (0, 3))
            sheet = GPUS[gpu]._replace(nvls=0)  # rings
            times = [step(SMALL, layout, sheet, per_node=per_node)[dimension] for layout in (whole, gathered)]
            assert times[0] == pytest.approx(sent(SMALL, whole)[dimension] / factor * each, rel=1e-9)
            if dimension == "data":  # ZeRO-3 makes 3 halves of an all-reduce per layer
                latency = times[1] - sent(SMALL, gathered)["data"] / factor * each
                hops = 1.5 * SMALL.layers / p  # the way of one key has one hop less in each ring, of either kind
                assert abs(latency - hops * way) <= hops * 2 * 4 * busbw.ACROSS
            compared += 1
    assert compared >= 200


def test_a_switch_that_adds_makes_all_reduces_of_a_node_faster_but_no_gathers():
    ring, adding = GPUS["h100"]._replace(nvls=0), GPUS["h100"]
    for stage, gain in ((0, 480 / 370), (1, 1)):
        layout = Layout(data=8, stage=stage, overlap=False)
        slow, fast = (step(GPT3, layout, gpu)["data"] for gpu in (ring, adding))
        assert slow / fast == pytest.approx(gain)


def test_each_card_carries_the_tokens_that_leave_its_node_for_their_experts():
    model = replace(MODELS["mixtral-8x7b"], experts=16)
    for (per_node, nodes, gpu), t in product(CLUSTERS, (1, 2)):
        if 16 % (e := per_node * nodes // t) or e == 1:
            continue
        hosts = {f"gpu{i}": i // per_node for i in range(e)}
        leaving, staying = Counter(), Counter()
        for send in chain(*all_to_all(hosts).steps):
            (staying if hosts[send.src] == hosts[send.dst] else leaving)[send.src] += 1 / (e - 1)
        layout, sheet = Layout(t, 1, e, expert=e), GPUS[gpu]
        inside = PROTOCOL * sheet.inside
        slow = max(max(leaving.values(), default=0) / sheet.outside, max(staying.values(), default=0) / inside)
        seconds = sent(model, layout)["experts"] * slow
        assert step(model, layout, sheet, per_node=per_node)["experts"] == pytest.approx(seconds, rel=1e-9)


def test_replicas_of_experts_exchange_by_their_own_cards():
    model, gpu = MODELS["mixtral-8x7b"], GPUS["h100"]
    whole, apart = (step(model, Layout(data=64, expert=e, overlap=False), gpu)["data"] for e in (1, 8))
    experts = 2 * model.layers * 8 * 3 * model.width * model.hidden  # bytes of all gradients, and of 8 GPUs' parts
    rest = 2 * model.parameters - experts
    assert whole == pytest.approx(2 * 63 / 64 * (rest + experts) / 400e9)
    assert apart == pytest.approx(2 * 63 / 64 * rest / 400e9 + 2 * 7 / 8 * experts / 8 / 50e9)


def test_a_node_with_fewer_replicas_has_fewer_cards():
    layout, gpu = Layout(data=9, overlap=False), GPUS["h100"]
    assert step(SMALL, layout, gpu)["data"] == pytest.approx(sent(SMALL, layout)["data"] / gpu.outside)


@pytest.mark.parametrize("p, m, v", [(4, 8, 1), (4, 2, 1), (4, 8, 2), (4, 4, 3), (4, 3, 2), (4, 1, 3)])
def test_the_bubble_of_a_step_is_that_of_its_schedule(p, m, v):
    model = replace(MODELS["gpt-39.1b"], vocabulary=1)  # almost no head, so that all stages take equally long
    parts = step(model, Layout(pipeline=p, chunks=v, batches=m), GPUS["a100"])
    one = sum(parts[name] for name in (*IN_A_STAGE, "pipeline")) / m
    table = interleaved(p, m, v) if v > 1 else one_f_one_b(p, m)
    assert parts["bubble"] / one == pytest.approx(len(pipeline(table).slots()) / (2 * v) - m, rel=1e-5)


@pytest.mark.parametrize("layers", [48, 46])  # without and with places of layers for embedding and head
def test_a_pipeline_is_as_fast_as_its_slowest_stage(layers):
    model = replace(MODELS["gpt-39.1b"], layers=layers)
    one, four = (step(model, Layout(pipeline=p, batches=m), GPUS["a100"]) for p, m in ((1, 1), (4, 1000)))
    head = step(replace(model, vocabulary=1), Layout(), GPUS["a100"])
    whole, of_layers = (sum(parts[name] for name in IN_A_STAGE) for parts in (one, head))
    each, output = of_layers / layers, whole - of_layers
    slowest = max(12 * each, (12 if layers == 48 else 11) * each + output)
    busy = sum(four[name] for name in (*IN_A_STAGE, "bubble")) / 1000
    assert busy == pytest.approx(slowest + 3 * whole / 4 / 1000, rel=1e-3)


def test_interleaved_stages_send_while_they_compute_only_if_overlapped():
    whole, layout = MODELS["gpt-39.1b"], Layout(pipeline=4, chunks=3, batches=8)
    plain, hidden = (step(whole, layout, GPUS["a100"], overlapped=each)["pipeline"] for each in (False, True))
    assert hidden == pytest.approx(0.15 * plain)
    alone = layout._replace(chunks=1)
    assert len({step(whole, alone, GPUS["a100"], overlapped=each)["pipeline"] for each in (False, True)}) == 1


def test_selective_recomputation_of_latent_attention_saves_no_queries_keys_and_values():
    model = MODELS["deepseek-v3"]
    whole, selective = (model.activations(recompute=kind, tokens=1)["attention"] for kind in ("none", "selective"))
    assert whole - selective == 2 * 128 * (3 * 128 + 2 * 64)
    again = 61 * (1536 * 128 * (128 + 64) + 512 * 128 * 2 * 128)
    assert model.flops_per_token("selective") - model.flops_per_token() == 2 * again
    assert "selective" in model.recomputable and "selective" not in MODELS["llama3-8b"].recomputable


def test_llama3_is_as_fast_as_with_the_best_v_and_falls_from_8k_to_16k_gpus():
    for run in LLAMA3:
        low, high = error(run)
        assert low < -0.2 and abs(high) < 0.07
    at_four = [throughput(run._replace(layout=run.layout._replace(chunks=4))) for run in LLAMA3]
    assert at_four[1] < at_four[0]
    assert max(abs(speed / run.flops - 1) for speed, run in zip(at_four, LLAMA3, strict=True)) < 0.10


# ---------------------------------------------------------------- choosing


@pytest.mark.parametrize("run", [*SC21, *LLAMA3[:2]], ids=lambda run: run.name)
def test_the_choice_is_at_least_as_fast_as_the_published_layout(run):
    batch = run.layout.sequences
    choice = parallelize(run.model, run.layout.gpus, batch=batch, gpu=run.gpu)
    seconds = batch * run.model.context * run.model.flops_per_token(run.layout.recompute) / run.layout.gpus
    assert choice.duration <= 1.02 * seconds / min(throughput(run), run.flops)
    assert choice.layout.gpus == run.layout.gpus and choice.layout.sequences == batch
    assert choice.memory.predicted <= 72e9
    low, high = choice.seconds
    assert low < choice.duration < high and choice.flops[0] < choice.flops[1] < run.gpu.peak


def test_reasons():
    assert "only the batch is divided" in parallelize("gpt-1.7b", 8, batch=64, tensor=1, pipeline=1).reason
    assert "fits too, but a step takes" in parallelize("gpt3", 1024, batch=1536).reason
    assert "smallest cut that fits" in parallelize("gpt3", 64, "56 GB", batch=64, pipeline=8, precision="mixed").reason
    assert "that these GPUs and this batch allow" in parallelize("gpt3", 64, batch=64, tensor=8, pipeline=8).reason
    for language, words in (("vi", "cách cắt"), ("zh", "切法")):
        speak(language)
        assert words in parallelize("gpt3", 1024, batch=1536).reason


def test_the_reason_names_the_zero_stage_of_both_cuts():
    reason = parallelize("llama3-405b", 16384, batch=2048, gpu="h100").reason
    assert re.findall(r"ZeRO stage (\d)", reason) == ["1", "1"] and "with t·p·c = 128 (" in reason
    reason = parallelize("llama3-70b", 128, batch=256, gpu="h100").reason
    assert re.findall(r"ZeRO stage (\d)", reason) == ["1", "3"] and "with t·p·c = 1 (" in reason
    whole = parallelize("llama3-405b", 16384, batch=16384, gpu="h100", tensor=1, pipeline=1)
    assert "each GPU computes all layers (ZeRO stage 3)" in whole.reason


def test_the_other_cut_of_the_reason_is_the_fastest_one():
    options = {"gpus": 1024, "batch": 1536, "precision": "mixed"}
    free = parallelize("gpt3", **options)
    said, parts = (float(re.search(words, free.reason)[1]) for words in (r"takes (\d+)%", r"with t·p = (\d+)"))
    times = [
        sum(step(GPT3, layout, GPUS["a100"]).values())
        for layout in _layouts(GPT3, 1024, 8, 1536)
        if layout.tensor * layout.pipeline == parts and sum(kept(GPT3, layout).values()) <= 72e9
    ]
    assert said == pytest.approx(100 * (min(times) / free.duration - 1), abs=0.6)


def test_all_layouts_can_be_done():
    model, count = Transformer(6, 64, 8, 128, 1000), 0
    for layout in _layouts(model, gpus=24, per_node=8, batch=48):
        check(model, layout)
        assert (layout.gpus, layout.sequences) == (24, 48)
        if layout.chunks > 1:
            assert layout.batches % layout.pipeline == 0
        count += 1
    assert count > 100


def test_a_smaller_memory_needs_a_smaller_part():
    rich, poor = (parallelize("gpt-39.1b", 512, memory=m, batch=1536) for m in ("80 GB", "16 GB"))
    assert poor.memory.predicted <= 0.9 * 16e9 < rich.memory.predicted
    assert poor.duration > rich.duration


def test_a_number_of_gpus_need_not_be_a_power_of_two():
    assert parallelize("gpt3", gpus=10_000).layout.gpus == 10_000


def test_long_sequences_are_shared():
    long = replace(LLAMA, context=131072)
    assert parallelize(long, 16384, batch=128, gpu="h100").layout.context > 1


REFUSED = [
    (lambda: parallelize("gpt5", 8), "there is no model 'gpt5'"),
    (lambda: parallelize("gpt3", 8, gpu="b9"), "there is no GPU 'b9'"),
    (lambda: parallelize("gpt3", 0), "gpus = 0"),
    (lambda: parallelize("gpt3", 8, batch=2.5), "batch = 2.5"),
    (lambda: parallelize("gpt3", 1024, tensor=7), "tensor = 7 does not divide heads = 96"),
    (lambda: parallelize("gpt3", 1024, tensor=16), "tensor = 16 does not divide per_node = 8"),
    (lambda: parallelize("gpt3", 1024, pipeline=5), "pipeline = 5 does not divide layers = 96"),
    (lambda: parallelize("gpt3", 1024, pipeline=3), "pipeline = 3 does not divide gpus = 1024"),
    (lambda: parallelize("gpt3", 1024, batch=1), "1024 GPUs cannot share"),
    (lambda: parallelize("gpt3", 8), r"the model does not fit \(GPUs: 8\)"),
    (lambda: Transformer(2, 64, 5, 16, 256), "heads = 5 does not divide width = 64"),
    (lambda: Transformer(2, 64, 4, 16, 256, groups=3), "groups = 3 does not divide heads = 4"),
    (lambda: Transformer(0, 64, 4, 16, 256), "layers = 0"),
    (lambda: memory("gpt3", tensor=7), "tensor = 7"),
    (lambda: memory("gpt3", pipeline=7, chunks=3), "pipeline × chunks = 21"),
    (lambda: memory("gpt3", stage=4), "stage = 4"),
    (lambda: memory("gpt3", precision="int8"), "precision = 'int8'"),
    (lambda: memory("gpt3", tensors=8), "there is no option tensors"),
    (lambda: memory("gpt3", (1, 2)), "batch = tuple"),
    (lambda: memory(-1), "there is no model -1"),
    (lambda: memory(7.5e9, data=0), "data = 0"),
    (lambda: memory(7.5e9, stage=4), "stage = 4"),
    (lambda: Transformer(2, 64, 4, 16, 256, experts=8, narrow=32), "chosen = 0"),
    (lambda: memory("mixtral-8x7b", data=3, expert=3), "expert = 3 does not divide experts = 8"),
]


@pytest.mark.parametrize("cause, words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(cause, words):
    with pytest.raises(ScalingError, match=words):
        cause()


def test_a_model_that_does_not_fit_is_refused_with_the_missing_bytes():
    with pytest.raises(ScalingError, match="72 GB are free") as refused:
        parallelize("gpt-1008b", 64)
    missing = float(str(refused.value).split("so ")[1].split(" GB")[0])
    parallelize("gpt-1008b", 64, memory=f"{(72 + missing) / 0.9 + 1:.0f} GB")
    with pytest.raises(UnitError):
        parallelize("gpt3", 64, memory="80 GB/s")


# ---------------------------------------------------------------- the command


def test_the_command(tmp_path, capsys):
    file = tmp_path / "trace.json"
    call = ["parallelize", "--model", "gpt3", "--gpus", "1024", "--batch", "1536"]
    assert main([*call, "--language", "vi", "--trace", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "song song tensor (t)" in printed and "216" in printed and str(file) in printed
    choice = parallelize("gpt3", 1024, batch=1536)
    events = json.loads(file.read_text("utf-8"))["traceEvents"]
    tasks = [event for event in events if event.get("cat") == "task"]
    assert len(tasks) == 2 * choice.layout.pipeline * choice.layout.chunks * choice.layout.batches
    assert main(["parallelize", "--model", "gpt3", "--gpus", "8", "--language", "zh"]) == 1
    assert "还差" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, words",
    [
        ("--model gpt5 --gpus 8", "there is no --model gpt5: write one of gpt3"),
        ("--model gpt3 --gpus 8 --gpu b9", "there is no --gpu b9: write one of a100, h100"),
        ("--model gpt3 --gpus x", "--gpus = 'x': write a whole number"),
        ("--model gpt3 --gpus 1024 --tensor 16", "--tensor = 16 does not divide --per-node = 8"),
        ("--model gpt3 --gpus 8 --memory 80", "--memory 80: write it with its unit, such as --memory '80 GB'"),
        (
            "--model gpt3 --gpus 8 --network 400",
            "--network 400: write it with its unit, such as --network '400 Gbit/s'",
        ),
        ("--model gpt3 --gpus 1", "the model does not fit (GPUs: 1)"),
    ],
)
def test_the_command_refuses_in_its_own_words(options, words, capsys):
    assert main(["parallelize", *options.split()]) == 1
    refused = capsys.readouterr().err
    assert refused.startswith(words) and "Transformer(" not in refused and "Gpu(" not in refused


def test_a_trace_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    call = ["parallelize", "--model", "gpt-1.7b", "--gpus", "8", "--trace"]
    for file in (tmp_path / "nowhere" / "trace.json", tmp_path):
        assert main([*call, str(file)]) == 1
        (refused,) = capsys.readouterr().err.splitlines()
        assert refused.startswith(f"the trace cannot be written to {file}: ")


def test_the_table_names_model_gpus_and_batch():
    lines = str(parallelize("llama3-405b", gpus=16384, gpu="h100", batch=2048, memory="79 GB").table()).splitlines()
    values = [line.split("   ")[-1].strip() for line in lines]
    assert values[1:4] == ["llama3-405b", "16\u00a0384 × h100", "2048 × 8192"] and values[-1].endswith("/ 79 GB")
    own = parallelize(Transformer(2, 64, 4, 16, 256), gpus=2, batch=2, gpu=GPUS["a100"]._replace(peak=1e14))
    assert "2 × 100 TFLOP/s" in str(own)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_command_in_chapter_13_answers_as_its_cell_does(language, capsys):
    folder = Path(__file__).parents[2] / "chapters" / "13-choosing"
    (command,) = re.findall(r"python -m d2lps (parallelize .*405b.*)", (folder / f"{language}.md").read_text("utf-8"))
    (call,) = re.findall(r'parallelize\(("llama3-405b".*16384.*)\)', (folder / "lesson.py").read_text("utf-8"))[:1]
    assert main(command.partition(" --trace")[0].split()) == 0
    choice = eval(f"parallelize({call})")  # the cell's own arguments
    assert capsys.readouterr().out.strip() == str(choice)


def test_a_trace_takes_the_time_that_the_closed_form_predicts():
    choice = parallelize("gpt-76.1b", 1024, batch=1792, tensor=8, pipeline=4)
    predicted = choice.duration - choice.parts["data"] - choice.parts["update"]
    assert trace_of(choice).duration == pytest.approx(predicted, rel=0.05)


def test_a_long_pipeline_is_cut_for_its_trace():
    trace = trace_of(parallelize("gpt-1008b", 3072, batch=3072, pipeline=64))
    assert len(trace.plan.nodes) == 16 and len(trace.plan.tasks) <= 4096


def test_large_models_need_no_torch():
    code = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; import d2lps; "
    code += "print(d2lps.memory('gpt3', data=64, stage=3)); print(d2lps.parallelize('gpt3', gpus=64))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "gathered" in done.stdout and "t·p = " in done.stdout, done.stderr
