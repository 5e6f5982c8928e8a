"""Results of packages that not every machine can have, and the helpers of D2L without the package d2l."""

import json
import re
import sys
from importlib.metadata import version

import pytest
import torch
from helpers.outputs import foreign, seen
from matplotlib import pyplot

import d2lps
from course.site import execute
from d2lps.messages import LANGUAGES, speak, text_in
from d2lps.notebook import d2l_compat, recorded
from d2lps.notebook.grading.course import CHAPTERS
from d2lps.notebook.plots import as_html

# As on macOS: the programs are missing.
NO_HOSTS = """
import os as _os
from d2lps.cluster import emulation as _emulation
_emulation.TOOLS, _os.environ["PATH"] = ("no-such-program",), ""
"""


def test_a_result_of_this_machine_is_the_result_and_says_nothing(capsys):
    found = {"rows": [1, 2]}
    assert d2lps.recorded("mxnet", found) is found and capsys.readouterr().out == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_mxnet_chapter_04_shows_recorded_results_with_their_source(language, capsys):
    kept = json.loads((CHAPTERS / "04-key-value-store/recorded.json").read_text("utf-8"))["mxnet"]
    speak(language)
    assert d2lps.recorded("mxnet") == kept["found"]
    said = capsys.readouterr().out
    assert all(part in said for part in (kept["day"], kept["machine"], kept["versions"], "mxnet 1.9.1", "numpy 1.23.5"))
    assert "pip install -e '.[course,mxnet]'" in said
    assert set(kept["found"]) == {"d2lps, TCP", "MXNet, TCP", "d2lps, memory"}
    assert all(value == 85 and len(times) == 20 for value, times in kept["found"].values())


def test_a_result_without_a_record_is_refused():
    with pytest.raises(recorded.NotRecorded, match="caffe is not installed here, and no result was kept: pip install"):
        d2lps.recorded("caffe")
    with pytest.raises(recorded.NotRecorded, match="No hosts are emulated here, and no result was kept: run this on"):
        d2lps.recorded("emulation", cell="nowhere")


@pytest.mark.timeout(400)
def test_chapter_03_shows_recorded_measurements_where_no_hosts_can_be_emulated(monkeypatch):
    """Each cell that needs hosts says so in each language, and shows a result of today's shape."""
    monkeypatch.setattr(execute, "FIRST", execute.FIRST + NO_HOSTS)
    folder = CHAPTERS / "03-many-machines"
    kept = json.loads((folder / "recorded.json").read_text("utf-8"))
    assert len({(entry["day"], entry["machine"], entry["versions"]) for entry in kept.values()}) == 1
    about = {name: next(iter(kept.values()))[name] for name in ("day", "machine", "versions")}
    for language, book in execute.execute(folder, seconds=300).items():
        assert foreign(book, language) == []
        said, shown = text_in(language, "extras.emulation-recorded", **about), dict(seen(book))
        assert {f"emulation/{id}" for id, words in shown.items() if said in words} == {*kept}
        assert not [id for id in ("no-servers", "levels", "slow-host", "slow-server", "go-on") if "–" in shown[id]]
        assert f"{kept['emulation/ping']['found']:.1f} MB/s" in shown["ping"] and "host2" in shown["lost"]
    assert sum(path.stat().st_size for path in CHAPTERS.glob("*/recorded.json")) < 150_000


def test_a_recorded_result_is_shown_later(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "01-small"
    folder.mkdir()
    monkeypatch.setattr(recorded, "CHAPTERS", tmp_path)
    monkeypatch.setattr(recorded, "_found", {})
    recorded.write(str(folder))
    assert not list(folder.iterdir())
    d2lps.recorded("torch", {"ms": 1.5})
    recorded.write(str(folder))
    assert d2lps.recorded("torch") == {"ms": 1.5} and f"torch {version('torch')}," in capsys.readouterr().out


@pytest.fixture
def without_d2l(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "d2l"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "d2l", None)
    return d2l_compat._import_d2l()


def test_without_the_package_d2l_our_own_helpers_stand_in(without_d2l):
    assert without_d2l is d2l_compat
    assert without_d2l.try_all_gpus() == [torch.device(f"cuda:{i}") for i in range(torch.cuda.device_count())]
    timer = without_d2l.Timer()
    assert timer.stop() >= 0 and timer.avg() == timer.sum() == timer.times[0]
    with pytest.raises(
        d2l_compat.D2lMissing, match=r"d2l.FashionMNIST needs the package d2l.*\[course,d2l\].*d2l.plot"
    ):
        without_d2l.FashionMNIST()
    assert not hasattr(without_d2l, "no_such_helper")


PLOTS = {
    "one curve": (([1, 2, 4], [3, 1, 2]), {"xlabel": "c", "ylabel": "ms"}),
    "no x": (([3, 1, 2],), {}),
    "several": (([1, 2, 4], [[1, 2, 3], [3, 2, 1]]), {"legend": ["a", "b"], "xscale": "log", "ylim": [0, 5]}),
    "own x": (([[1, 2], [1, 2, 3]], [[1, 2], [3, 2, 1]]), {"fmts": ["-", "g-."], "figsize": (5, 3)}),
    "tensors": ((torch.arange(3), torch.ones(3)), {"xlim": (0, 2)}),
}


@pytest.mark.parametrize("call", PLOTS)
def test_our_plots_are_those_of_d2l(call):
    d2l = pytest.importorskip("d2l", reason="d2l is for Python 3.11") and d2l_compat._import_d2l()
    arguments, options = PLOTS[call]
    pictures = []
    for helpers in (d2l, d2l_compat):
        pyplot.close("all")
        helpers.plot(*arguments, **options)
        pictures.append(re.sub(r'"#?[mp][0-9a-f]{10}"|url\(#\w+\)', "", as_html(pyplot.gcf())))
    pyplot.close("all")
    assert pictures[0] == pictures[1] and "<path" in pictures[0]


def test_our_images_are_in_rows_and_columns():
    axes = d2l_compat.show_images(torch.rand(6, 4, 4), 2, 3, titles=[*"abcdef"])
    assert len(axes) == 6 and [place.get_title() for place in axes] == [*"abcdef"]
    assert all(place.images[0].get_array().shape == (4, 4) for place in axes)
    pyplot.close("all")
