"""``divide``: its table beside the numbers of ``step`` and of the opening of chapter 13."""

import pytest

from d2lps import divide, parallelize
from d2lps.scaling import GPUS, MODELS, Layout, ScalingError, kept, step
from d2lps.units import show_seconds, show_size

STATE = {"weights", "gradients", "optimizer"}


def entry(lab, *position: int) -> dict:
    return lab.data["table"][" ".join(map(str, position))]


def test_it_shows_the_memory_the_seconds_and_the_interval_of_the_formulas():
    lab, model = divide("gpt-39.1b", 64, (16, 256)), MODELS["gpt-39.1b"]
    choice = parallelize("gpt-39.1b", 64, batch=16)
    wider = choice.seconds[1] / choice.duration  # the same on all such GPUs
    for t, p, batch in ((8, 4, 16), (4, 4, 16), (2, 8, 256)):
        d = 64 // (t * p)
        layout = Layout(t, p, d, 1, 1, batch // d, stage=1, recompute="selective")
        seconds, lines, shown = step(model, layout, GPUS["a100"]), kept(model, layout), entry(lab, t, p, batch)
        assert shown["rest"] == f"replicas: d = 64 / (t · p) = {d}" and shown["d"] == d
        assert f"{t} · {p} · {d}" in shown["said"] and show_seconds(sum(seconds.values())) in shown["said"]
        assert show_seconds(sum(seconds.values()) * wider) in shown["said"]
        assert shown["total"] == show_size(sum(lines.values())) and shown["total"] in shown["said"]
        assert shown["sizes"][3] == sum(size for name, size in lines.items() if name not in STATE)
        assert sum(shown["sizes"]) == shown["size"] == pytest.approx(sum(lines.values()), rel=1e-12)
        assert sum(shown["seconds"]) == pytest.approx(sum(seconds.values()), rel=1e-4)
        assert show_seconds(seconds["bubble"]) in shown["parts"][2]


def test_an_impossible_division_is_refused_in_one_sentence():
    lab = divide("gpt-39.1b", 64, (16, 64))
    assert entry(lab, 16, 8, 16)["refused"].startswith("t · p = 16 · 8 takes 128 GPUs, and there are 64")
    assert "64 replicas need a sequence each, and a step has 16" in entry(lab, 1, 1, 16)["refused"]
    assert "does not fit: a GPU needs" in entry(lab, 1, 1, 64)["said"]
    assert len(lab.data["table"]) == 5 * 5 * 2
    uneven = divide("gpt-39.1b", 96, (16,))
    assert entry(uneven, 8, 4, 16)["rest"].endswith("d = 96 / (t · p) = 3")
    assert "t · p = 64 does not divide gpus = 96" in entry(uneven, 16, 4, 16)["refused"]
    assert entry(uneven, 16, 4, 16)["rest"] == ""


def test_a_cut_that_the_sliders_do_not_have_is_refused():
    with pytest.raises(ScalingError, match="t = 3: the sliders have 1, 2, 4, 8, 16"):
        divide("gpt-39.1b", 64, (16,), t=3)
    assert repr(divide("gpt-39.1b", 64, (16,), t=16, p=8)).startswith("<divide: t · p = 16 · 8 takes 128 GPUs")
