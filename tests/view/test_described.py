"""Runs, message charts and plots have one descriptive sentence each, and a plot has its numbers below it."""

import re

import pytest
from matplotlib.figure import Figure

import d2lps
from d2lps.messages import LANGUAGES, speak
from d2lps.notebook.plots import as_html, table
from d2lps.notebook.plots import described as of_plot
from d2lps.schedule import gpipe, pipeline
from d2lps.simulate import Network
from d2lps.view.drawing import draw
from d2lps.view.player import watch

GPUS = [f"gpu{i}" for i in range(4)]
PLANS = {"GPU 0": d2lps.aggregate_at(GPUS, "gpu0"), "shards": d2lps.sharded(GPUS)}
TRACES = {name: d2lps.cost.shared(plan, d2lps.pcie_server(), "160 MB") for name, plan in PLANS.items()}


def descriptions(html: str) -> list[str]:
    return re.findall(r"<desc>(.*?)</desc>", html)


def test_the_description_of_a_run_names_bytes_and_bottleneck():
    html = watch(*TRACES.values(), names=list(TRACES))._repr_html_()
    first, second = descriptions(html)
    sends = {name: sum(len(step) for step in plan.steps) for name, plan in PLANS.items()}
    assert first.startswith(f"GPU 0: {sends['GPU 0']} messages in 2 steps take 60 ms; ")
    assert second.startswith(f"shards: {sends['shards']} messages in 2 steps take 15 ms; ")
    assert "switch→gpu0" in first and "no single link" in second
    assert descriptions(draw(TRACES["GPU 0"])._repr_html_()) != descriptions(draw(TRACES["shards"])._repr_html_())


def test_a_pipeline_says_which_device_waits_longest():
    for slow, waits in ((1, "all devices compute equally long"), (3, "gpu1 waits longest")):
        work = {("F", 0): 1e-3 * slow, ("F", 1): 1e-3, ("B", 0): 2e-3 * slow, ("B", 1): 2e-3}
        trace = d2lps.cost.shared(pipeline(gpipe(2, 4), work))
        (said,) = descriptions(watch(trace)._repr_html_())
        assert f": {2 * 2 * 4} tasks end after {1e3 * trace.duration:g} ms; " in said and waits in said
        assert f"bubble: {100 * trace.bubble():.3g} %" in said


def test_descriptions_exist_in_each_language():
    said = []
    for language in LANGUAGES:
        speak(language)
        said.append(descriptions(watch(TRACES["GPU 0"], names="x")._repr_html_())[0])
    assert len(set(said)) == 3 and all("60 ms" in each.replace("\u00a0", " ") for each in said)


class Deaf:
    def receive(self, src, message, now):
        pass


def test_a_chart_of_messages_says_how_many_are_lost():
    net = Network(seed=1)
    net.nodes |= {"a": Deaf(), "b": Deaf()}
    net.record()
    for i in range(3):
        net.after(0.01 * i, net.send, "a", "b", ("ping", i))
    net.after(0.02, net.crash, "b")
    net.run(until=0.1)
    lost = sum(each.end is None or each.end >= 0.02 for each in net.deliveries)
    (said,) = descriptions(draw(net)._repr_html_())
    assert said.startswith(f"From 0 to 0.1 s, 3 messages, {lost} of them without effect; most are “ping”. a: ")


def plotted(*curves, x=(1, 2, 3), title="") -> Figure:
    figure = Figure()
    axes = figure.subplots()
    for name, values in curves:
        axes.plot(x, values, label=name)
    axes.set_xlabel("step"), axes.set_ylabel("loss"), axes.set_title(title), axes.legend()
    return figure


CURVES = ("A", (3, 2, 1)), ("B", (3, 2, 1.1)), ("C", (3, 4, 9))


def test_a_plot_says_which_curve_is_apart():
    assert of_plot(plotted(*CURVES)) == "loss · step: C is apart at the end: 9, and the others have 1 to 1.1."
    assert of_plot(plotted(CURVES[0])) == "loss · step: From 3 to 1; the least is 1, the most 3."
    same = plotted(("A", (3, 2, 1)), ("B", (3, 2, 1.01)))
    assert of_plot(same) == "loss · step: At the end all curves lie between 1 and 1.01."
    assert descriptions(as_html(plotted(*CURVES))) == [of_plot(plotted(*CURVES))]


@pytest.mark.parametrize("length", [3, 12, 13, 500])
def test_the_numbers_below_a_plot_are_those_of_its_curves(length):
    x = [0.5 * i for i in range(length)]
    html = table(plotted(("A", [value**2 for value in x]), ("B", [-value for value in x]), x=x))
    assert html.startswith("<details><summary>numbers of the picture</summary>")
    cells = [cell.replace("\u00a0", "") for cell in re.findall(r"<td[^>]*>(.*?)</td>", html)]
    rows = [cells[i : i + 3] for i in range(0, len(cells), 3)]
    assert len(rows) == min(length, len(rows)) <= 14 and [float(rows[0][0]), float(rows[-1][0])] == [x[0], x[-1]]
    for place, square, negative in rows:
        assert float(square) == pytest.approx(float(place) ** 2, rel=1e-3) and float(negative) == -float(place)


def test_bars_and_images_are_described_too():
    figure = Figure()
    figure.subplots().bar(["a", "b"], [2, 5])
    assert of_plot(figure) == "2 bars from 2 to 5." and "<td" in table(figure)
    figure = Figure()
    for axes in figure.subplots(1, 3):
        axes.imshow([[0, 1]])
    assert of_plot(figure) == "3 images." and table(figure) == ""
