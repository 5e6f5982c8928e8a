"""``divide``: its numbers beside those of ``step`` and of the opening of chapter 13, and its page without a kernel."""

import re

import pytest

from d2lps import divide, parallelize, speak
from d2lps.messages import LANGUAGES
from d2lps.scaling import GPUS, MODELS, Layout, kept, step
from d2lps.units import show_seconds, show_size


def said(lab) -> str:
    return re.search(r'role="status">(.*?)</p>', lab._stage.value)[1]


def test_it_shows_the_memory_the_seconds_and_the_interval_of_the_formulas():
    lab, model = divide("gpt-39.1b", 64, (16, 256)), MODELS["gpt-39.1b"]
    for t, p, batch in ((8, 4, 16), (4, 4, 16), (2, 8, 256)):
        for name, value in {"t": t, "p": p, "batch": batch}.items():
            lab.controls[name].value = value
        d = 64 // (t * p)
        layout = Layout(t, p, d, 1, 1, batch // d, stage=1, recompute="selective")
        parts = step(model, layout, GPUS["a100"])
        assert f"replicas: d = 64 / (t · p) = {d}<" in lab._stage.value
        assert f"{t} · {p} · {d}" in said(lab) and show_seconds(sum(parts.values())) in said(lab)
        assert show_size(sum(kept(model, layout).values())) in said(lab)
        assert show_seconds(parts["bubble"]) in lab._stage.value
    choice = parallelize("gpt-39.1b", 64, batch=16)
    wider = choice.seconds[1] / choice.duration  # the same on all such GPUs
    assert show_seconds(sum(parts.values()) * wider) in said(lab)


def test_an_impossible_division_is_refused_in_one_sentence():
    lab = divide("gpt-39.1b", 64, (16, 64))
    lab.controls["t"].value = 16
    lab.controls["p"].value = 8
    assert "t · p = 16 · 8 takes 128 GPUs, and there are 64" in said(lab) and "<svg" not in lab._stage.value
    lab.controls["t"].value = lab.controls["p"].value = 1
    assert "64 replicas need a sequence each, and a step has 16" in said(lab)
    lab.controls["batch"].value = 64
    assert "does not fit: a GPU needs" in said(lab) and "<svg" in lab._stage.value


@pytest.mark.parametrize("language", LANGUAGES)
def test_its_page_has_every_position_and_stays_small(language):
    speak(language)
    lab = divide("gpt-39.1b", 64, (16, 64, 256))
    page = lab._repr_mimebundle_()["text/html"]
    assert len(page.encode()) <= 150_000
    assert len(re.search(r'"application/json">\[(.*?)\]<', page)[1].split(",")) == 5 * 5 * 3
    assert page.count('type="range"') == 3 and said(lab) in page


def test_gpus_that_are_no_multiple_of_a_replica_are_refused():
    lab = divide("gpt-39.1b", 96, (16,))
    assert "d = 96 / (t · p) = 3<" in lab._stage.value
    lab.controls["t"].value = 16
    lab.controls["p"].value = 4
    assert "t · p = 64 does not divide gpus = 96" in said(lab)
    assert "<svg" not in lab._stage.value and "d = " not in lab._stage.value
