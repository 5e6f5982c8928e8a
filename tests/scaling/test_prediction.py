"""One layout: its prediction, its changes, what is refused, and its JSON."""

import json
import re
from importlib import resources

import pytest
from helpers.schemas import valid

from d2lps import memory, parallelize, predict_step
from d2lps.__main__ import main
from d2lps.messages import LANGUAGES, speak
from d2lps.scaling import GPUS, MODELS, RUNS, Layout, ScalingError, step
from d2lps.scaling.layout import check, kept
from d2lps.scaling.prediction import HABITS
from d2lps.scaling.runs import TABLE

OURS, ON = "t8.p4.d4.v1.b1.z1.none", {"gpu": "h100", "batch": 256}


def test_a_layout_is_predicted_as_step_and_memory_predict_it():
    ours = predict_step("llama3-70b", OURS, **ON)
    layout = Layout(8, 4, 4, 1, 1, 64, stage=1)
    assert ours.layout == layout and ours.parts == step(MODELS["llama3-70b"], layout, GPUS["h100"], precision="bf16")
    assert ours.memory == memory("llama3-70b", precision="bf16", **layout._asdict())
    assert ours.seconds[1] / ours.duration == pytest.approx(ours.spread.far)
    assert predict_step("llama3-70b", layout, "h100") == ours
    assert predict_step("llama3-70b", "t8.p4.none", gpus=128, **ON) == ours


def test_each_change_differs_in_one_size_fits_and_is_faster():
    ours = predict_step("llama3-70b", "t8.p4.d4.v1.b1.z1.full", **ON)
    assert ours.changes and [*ours.changes] == sorted(ours.changes, key=lambda change: change.duration)
    for change in ours.changes:
        other = {name for name, a, b in zip(Layout._fields, ours.layout, change.layout, strict=True) if a != b}
        assert change.name in other and other <= {change.name, "data", "batches", "chunks"}
        assert change.layout.gpus == 128 and change.layout.sequences == 256
        assert change.duration < ours.duration and change.memory <= ours.room
        assert predict_step("llama3-70b", change.layout, "h100").duration == change.duration


def test_a_layout_that_does_not_fit_is_predicted_with_changes_that_fit():
    ours = predict_step("llama3-405b", "t8.p16.d16.v1.b1.z1.none", "h100", batch=2048)
    assert not ours.fits and "does not fit" in str(ours) and ours.changes
    assert all(change.memory <= ours.room for change in ours.changes)


def test_a_measured_step_of_the_layout_calibrates():
    ours = predict_step("llama3-70b", OURS, measured=21.0, **ON)
    assert ours.duration == pytest.approx(21.0) and "calibrates" in str(ours)
    assert ours.seconds[1] / ours.duration == pytest.approx(ours.spread.near)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"layout": Layout(3, 5, 7)}, "tensor = 3 does not divide heads = 64"),
        ({"layout": "t3.p2"}, "tensor = 3 does not divide heads = 64"),
        ({"layout": "x3"}, "x3 is no layout"),
        ({"layout": OURS, "gpus": 64}, "cannot divide 256 sequences over 64 GPUs"),
        ({"layout": Layout(8, 4, 4, batches=64), "gpus": 64}, "over 64 GPUs"),
        ({"layout": "t256.p2", "gpus": 128}, "cannot divide"),
        ({"layout": "t0.p2"}, "t0.p2 is no layout"),
        ({"layout": "t8.p4.d4.z7"}, "stage = 7"),
        ({"layout": OURS, "gpu": "b9"}, "there is no GPU 'b9'"),
        ({"layout": OURS, "like": "jax"}, "there is no framework 'jax'"),
        ({"layout": OURS, "room": 1.5}, "room = 1.5"),
        ({"layout": OURS, "room": "x"}, "room = 'x'"),
        ({"layout": OURS, "precision": "fp8", "gpu": "a100"}, "8-bit"),
        ({"layout": OURS, "precision": "int8"}, "precision = 'int8'"),
        ({"layout": OURS, "batch": 0}, "batch = 0"),
        ({"layout": OURS, "measured": 0.1}, "cannot take 0.1 s"),
    ],
)
def test_what_is_refused_in_three_languages(options, words):
    for language in LANGUAGES:
        speak(language)
        with pytest.raises(ScalingError, match=re.escape(words) if language == "en" else None):
            predict_step("llama3-70b", **(ON | options))


# ---------------------------------------------------------------- published layouts


def test_experts_are_divided_over_tensor_and_data_as_megatron_does():
    ours = predict_step("qwen3-235b-a22b", "t2.p8.e32.d16.v4.b1.z1.none", "h100", batch=2048, precision="fp8-mixed")
    assert ours.layout.gpus == 256 and ours.layout.expert == 32
    experts = 94 * 128 * 3 * 4096 * 1536
    own = predict_step("qwen3-235b-a22b", ours.layout._replace(expert=1), "h100", precision="fp8-mixed")
    saved = own.memory["weights"].predicted - ours.memory["weights"].predicted
    assert saved == pytest.approx(2 * experts / 94 * 12 * (1 - 1 / 32), rel=1e-6)  # 12 layers of the fullest stage


def test_tuned_dense_layouts_fit_with_the_habits_of_their_framework():
    habits, several = HABITS["megatron"], ("NeMo", "Megatron-Bridge", "Llama 3", "Megatron-LM 2021")
    tuned = [run for run in RUNS if run.source in several and not run.model.experts]
    over = []
    for run in tuned:
        layout = run.layout._replace(fused_swiglu=habits.fused_swiglu, freed=habits.freed)
        check(run.model, layout)
        if sum(kept(run.model, layout, run.precision).values()) > habits.room * run.gpu.memory:
            over.append(run.name)
    assert len(tuned) == 29 and not over


def test_habits_of_a_framework_are_defaults():
    plain, like, own = (
        parallelize("llama3-8b", 8, gpu="h100", batch=64, **options)
        for options in ({}, {"like": "fsdp"}, {"like": "fsdp", "room": 0.5, "fused_swiglu": False})
    )
    assert not plain.layout.fused_swiglu and like.layout.fused_swiglu and not like.layout.freed
    assert like.parts["attention"] > plain.parts["attention"] and like.room == pytest.approx(0.97 * 80e9)
    assert own.room == 40e9 and not own.layout.fused_swiglu


def test_runs_of_the_table_name_their_sources():
    file = resources.files("d2lps").joinpath("scaling", "runs.csv").read_text("utf-8")
    for source in {run.source for run in TABLE}:
        assert f"# {source}: github.com/" in file


# ---------------------------------------------------------------- the command

CALL = ["parallelize", "--model", "llama3-70b", "--gpus", "128", "--gpu", "h100", "--batch", "256"]


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--layout", OURS],
        ["--measured", f"{OURS}=21"],
        ["--layout", OURS, "--measured", f"{OURS}=21"],
        ["--like", "fsdp", "--room", "0.9", "--keep-results"],
        ["--precision", "fp8-mixed", "--like", "megatron", "--language", "zh"],
    ],
)
def test_json_is_what_its_schema_says(more, capsys):
    assert main([*CALL, *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    valid(found, "scaling/parallelize.schema.json")
    assert ("changes" in found) == ("--layout" in more) != ("ranked" in found)
    assert sum(found["layout"]["seconds_by_cause"].values()) == pytest.approx(found["layout"]["seconds"])
    assert sum(found["memory_bytes"].values()) == pytest.approx(found["layout"]["memory_bytes"])


def test_the_command_predicts_a_layout(capsys):
    assert main([*CALL, "--layout", OURS]) == 0
    assert capsys.readouterr().out.strip() == str(predict_step("llama3-70b", OURS, **ON))


def test_rules_that_excluded_something_are_printed():
    line = parallelize("llama3-70b", 128, gpu="h100", batch=256).left_out
    assert "4096 tokens" in line and "ZeRO-2" in line and "of 1642 layouts" in line and "8 GPUs" in line
    assert parallelize("gpt2", 1, gpu="h100", batch=4).left_out == ""
