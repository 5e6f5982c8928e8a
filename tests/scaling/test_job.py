"""Time to accuracy and its cost against a search, and the published figures."""

import math
import tomllib
from pathlib import Path

import pytest

from d2lps.scaling import ScalingError
from d2lps.scaling.job import Job, fit
from d2lps.scaling.published import CHIPS, PRICES, TRAINED, growth

JOBS = [Job(18, 33, 1000, 0.002), Job(72_000, 1e6, 18_315, 0.288, 2048), Job(5, 7, 3, 0.4)]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("devices", [1, 2, 3, 50, 1000])
def test_no_other_batch_is_faster_than_the_best(job, devices):
    best = job.best_batch(devices)
    others = [best * factor for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2) if best * factor >= job.least * devices]
    assert others and all(job.seconds(devices, other) >= job.seconds(devices) for other in others)


@pytest.mark.parametrize("job", JOBS)
def test_a_step_with_the_critical_batch_takes_twice_the_fewest_steps_and_examples(job):
    steps = job.steps_of(job.critical)
    assert steps == pytest.approx(2 * job.steps)
    assert steps * job.critical == pytest.approx(2 * job.steps * job.critical)


def test_at_the_knee_time_and_cost_are_four_times_the_least():
    job = JOBS[1]
    knee = round(job.critical / (job.rate * job.exchange))
    assert job.seconds(knee) == pytest.approx(4 * job.steps * job.exchange, rel=0.02)
    assert job.cost(knee, 6.88) == pytest.approx(4 * job.cost(1, 6.88), rel=0.02)
    assert job.seconds(10**7, 1e12) > job.steps * job.exchange * 0.99


def test_one_device_sends_nothing():
    assert Job(10, 5, 100, 3).step_seconds(1, 50) == 0.5


@pytest.mark.parametrize("fewest, critical", [(18, 33), (15, 40), (7, 130), (72_000, 1e6)])
@pytest.mark.parametrize("batches", [(1, 2), (4, 32, 256), (3, 700, 5, 9)])
def test_a_fit_finds_the_numbers_of_exact_runs(fewest, critical, batches):
    job = Job(fewest, critical, 1)
    assert fit({batch: job.steps_of(batch) for batch in batches}) == pytest.approx((fewest, critical), rel=1e-6)


@pytest.mark.parametrize("measured", [{}, {4: 40}, {4: 40, 8: 40}, {4: 40, 8: 50}, {1: 100, 100: 1}])
def test_runs_that_obey_no_formula_are_refused(measured):
    with pytest.raises(ScalingError):
        fit(measured)


def test_published_figures_have_sources_and_days():
    root = Path(__file__).parents[2]
    sources = tomllib.loads((root / "chapters/references.toml").read_text("utf-8"))
    assert {entry.source for entry in (*TRAINED.values(), *PRICES.values())} <= set(sources)
    days = [entry.day for entry in TRAINED.values()]
    assert days == sorted(days) and len(CHIPS) == 3


def test_growth_and_prices_are_what_the_chapter_says():
    assert growth(TRAINED["AlexNet"], TRAINED["GPT-6 Astra"]) == pytest.approx(4.68, abs=0.01)
    assert growth(TRAINED["AlexNet"], TRAINED["AlphaStar"], 1.5) == pytest.approx(13.7, abs=0.1)
    assert 12 / math.log2(growth(CHIPS["V100"], CHIPS["H100"])) == pytest.approx(20, abs=0.5)
    assert len({round(PRICES[name].each, 6) for name in ("p2.xlarge", "p2.8xlarge", "p2.16xlarge")}) == 1
