"""Predictions: no cell passes one by accident, bad entries are refused in a sentence, and a guess is kept."""

import ast
import re
import sys

import nbformat
import pytest
from helpers import workspaces
from nbclient import NotebookClient

from d2lps import aggregate_at, cost, pcie_server, predict, sharded, speak
from d2lps.messages import LANGUAGES, named, sentences
from d2lps.notebook import kept
from d2lps.notebook.grading.course import CHAPTERS
from d2lps.notebook.predict import COLOURS, NEAR, OTHER, known
from d2lps.notebook.predict_page import PredictionError
from d2lps.view.drawing.theme import THEME, contrast

ASKED = {"GPU 0": "ms", "CPU": "ms", "shards": "ms"}
RIGHT = {"GPU 0": 60, "CPU": 80, "shards": 15}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    return workspaces.enter(tmp_path / "course", monkeypatch)


def off(**changed):
    return RIGHT | {"shards": changed.pop("shards", 15)} | changed


def said(revealed) -> str:
    """The words of a page."""
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", revealed._repr_html_()))


# ---------------------------------------------------------------- entries

BAD = [
    *((entry, "with-unit") for entry in ("80 ms", "80ms", "0.06 s", "6 0")),
    *((entry, "no-number") for entry in ("sixty", "nan", "1e999", float("inf"))),
    *((entry, "negative") for entry in ("−3", -3, "-0.5", 0)),
    *((entry, "too-small-unit") for entry in (0.015, "0.015")),
    *(("15000", "too-large-unit"), (0.0000001, "outside"), ("7,5", "comma"), ("1,000", "comma")),
    *((entry, "empty") for entry in ("", "  ", None, True, [60])),
]


@pytest.mark.parametrize("entry, reason", BAD, ids=[f"{entry!r}" for entry, _ in BAD])
@pytest.mark.parametrize("spoken", LANGUAGES)
def test_an_impossible_entry_is_refused_in_a_sentence(entry, reason, spoken, place):
    speak(spoken)
    with pytest.raises(PredictionError) as refused:
        predict("race", ASKED, guess=RIGHT | {"CPU": entry})
    assert refused.value.reason == reason
    assert str(refused.value).startswith("CPU")
    words = sentences(spoken)[f"predict.{reason}"]
    assert all(part in str(refused.value) for part in re.split(r"\{\w+\}", words))
    assert workspaces.contents(place) == {} and predict("race", ASKED).guess is None


@pytest.mark.parametrize("entry", [80, "80", " 80 ", "80.0", "8e1", "８０", "+80", "80."])
def test_a_number_is_taken_however_it_is_written(entry):
    assert predict("race", ASKED, guess=RIGHT | {"CPU": entry}).guess["CPU"] == 80


def test_a_prediction_that_no_chapter_knows_has_no_range():
    assert predict("my-own", {"x": "ms"}, guess={"x": 0.001}).guess == {"x": 0.001}
    assert predict("my-own", {"x": ""}, guess={"x": 0}).guess == {"x": 0}
    with pytest.raises(PredictionError, match="x: 3 ms is more than a number. Write only the number"):
        predict("my-own", {"x": ""}, guess={"x": "3 ms"})


@pytest.mark.parametrize("guess", [{"CPU": 80}, RIGHT | {"TPU": 1}, 60, [60, 80, 15], {}])
def test_a_guess_must_name_the_questions(guess):
    with pytest.raises(PredictionError) as refused:
        predict("race", ASKED, guess=guess)
    assert refused.value.reason == "other-names"


@pytest.mark.parametrize("name", ["", "../race", "a race", None, 7])
def test_a_name_can_be_that_of_a_file(name):
    with pytest.raises(PredictionError) as refused:
        predict(name, ASKED)
    assert refused.value.reason == "bad-name"


@pytest.mark.parametrize("asked", [{}, None, ["CPU"], {"CPU": None}, {1: "ms"}, "CPU"])
def test_what_is_asked_has_units(asked):
    with pytest.raises(PredictionError) as refused:
        predict("race", asked)
    assert refused.value.reason == "bad-asked"


# ---------------------------------------------------------------- hidden, then shown


@pytest.mark.parametrize("guess", [None, dict.fromkeys(ASKED), dict.fromkeys(ASKED, "")])
def test_the_answer_is_hidden_until_a_guess(guess, place):
    race = predict("race", ASKED, guess=guess)
    assert repr(race).endswith("You have not guessed yet.")
    revealed = race.reveal(RIGHT)
    assert revealed.hidden and repr(revealed).startswith("You have not guessed yet")
    assert "60" not in repr(revealed)
    before, folded, inside = revealed._repr_html_().partition("<details>")
    assert folded and "60" not in before and "60 ms" in inside
    assert workspaces.contents(place) == {}


def test_guess_model_and_measurement_stand_side_by_side_as_bars():
    server, gpus = pcie_server(), ["gpu0", "gpu1", "gpu2", "gpu3"]
    plans = {"GPU 0": aggregate_at(gpus, "gpu0"), "CPU": aggregate_at(gpus, "cpu"), "shards": sharded(gpus)}
    shared = {name: cost.shared(plan, server, "160 MB") for name, plan in plans.items()}
    ideal = {name: cost.ideal(plan, server, "160 MB") for name, plan in plans.items()}
    measured = {"GPU 0": 64.5, "CPU": 90, "shards": 17}
    race = predict("race", ASKED, guess={"GPU 0": 20, "CPU": 20, "shards": 7.5})
    revealed = race.reveal(shared, measured, ideal=ideal)
    html = revealed._repr_html_()
    assert "<details>" not in html
    numbers = [float(each) for each in re.findall(r"</span>([\d.]+) ms", html)]
    assert numbers == [20, 20, 60, 64.5, 20, 20, 80, 90, 7.5, 5, 15, 17]
    widths = [float(each) for each in re.findall(r"\*([\d.]+)\);background", html)]
    assert widths == pytest.approx([number * max(widths) / 90 for number in numbers], abs=0.01)
    labels = re.findall(r'scope="row"[^>]*>([^<]+)', html)
    assert labels == ["you", "links unshared", "shared links", "measured"] * 3
    assert repr(revealed).splitlines()[0] == "GPU 0    you              20 ms"


def test_what_has_another_unit_has_another_scale():
    mixed = predict("mixed", {"a": "ms", "b": "%"}, guess={"a": 1000, "b": 50})
    html = mixed.reveal({"a": 500, "b": 100})._repr_html_()
    assert re.findall(r"\*([\d.]+)\);background", html) == ["1", "0.5", "0.5", "1"]
    assert "50%" in html
    assert "*0);background" in predict("none", {"a": ""}, guess={"a": 0}).reveal({"a": 0})._repr_html_()


@pytest.mark.parametrize("model", [{"GPU 0": 60}, None, {}, RIGHT | {"CPU": "80"}, RIGHT | {"CPU": None}])
def test_everything_that_was_asked_needs_an_answer(model):
    with pytest.raises(PredictionError) as refused:
        predict("race", ASKED).reveal(model)
    assert refused.value.reason == "no-answer"


def test_a_trace_answers_only_a_question_about_time():
    trace = cost.shared(sharded(["gpu0", "gpu1"]), pcie_server(2), "160 MB")
    assert predict("s", {"x": "s"}, guess={"x": 1}).reveal({"x": trace}).thoughts
    with pytest.raises(PredictionError) as refused:
        predict("bytes", {"x": "MB"}).reveal({"x": trace})
    assert refused.value.reason == "no-answer"


# ---------------------------------------------------------------- what a guess tells


@pytest.mark.parametrize(
    "guess, words",
    [
        (RIGHT, "GPU 0, CPU, shards: right."),
        (off(CPU=79), "GPU 0, CPU, shards: right."),
        (off(**{"GPU 0": 20, "CPU": 20}), "GPU 0, CPU: 20\u00a0ms is one transfer there and one back. You forgot"),
        (off(shards=7.5), "shards: 7.5\u00a0ms is one direction only"),
        (off(**{"GPU 0": 30}), "GPU 0: 30\u00a0ms is one direction only"),
        (off(CPU=60), "CPU: 60\u00a0ms counts three gradients, but the CPU has none of its own"),
        (off(CPU=200), "CPU: 2.5 times the right number."),
        (off(CPU=32), "CPU: the right number is 2.5 times as large."),
    ],
)
def test_the_thought_behind_a_number_is_named(guess, words):
    assert any(thought.startswith(words) for thought in predict("race", ASKED, guess=guess).reveal(RIGHT).thoughts)


def test_what_was_measured_is_right_too():
    revealed = predict("race", ASKED, guess=off(CPU=200)).reveal(RIGHT, off(CPU=200))
    assert revealed.thoughts == ["GPU 0, CPU, shards: right."]
    other = predict("race", ASKED, guess=off(CPU=200)).reveal(RIGHT, alone=off(CPU=200))  # compared with, not right
    assert "CPU: 2.5 times the right number." in other.thoughts


@pytest.mark.parametrize("spoken", LANGUAGES)
def test_it_is_named_in_the_language_of_the_reader(spoken):
    speak(spoken)
    revealed = predict("race", ASKED, guess=off(CPU=20)).reveal(RIGHT)
    (thought,) = [each for each in known()["race"]["thoughts"] if "CPU" in each["of"] and each["guess"] == 20]
    assert any(line.endswith(thought[spoken]) for line in revealed.thoughts)
    assert f'lang="{spoken}' in revealed._repr_html_() and thought[spoken] in revealed._repr_html_()


ASKING = re.compile(r'predict\(\s*"([\w-]+)", (\{.*?\})', re.S)


def test_each_prediction_of_a_chapter_has_its_questions():
    """Names as in the lesson, three languages, and no wrong number that is near another or cannot be entered."""
    asked = {}
    for lesson in CHAPTERS.glob("*/lesson.py"):
        asked |= {name: ast.literal_eval(units) for name, units in ASKING.findall(lesson.read_text("utf-8"))}
    assert "race" in asked and set(known()) <= set(asked)
    for name, table in known().items():
        low, high = table.get("within", (0, float("inf")))
        for what in asked[name]:
            guesses = [thought["guess"] for thought in table.get("thoughts", ()) if what in thought["of"]]
            assert all(low <= guess <= high for guess in guesses)
            assert all(abs(a - b) > 2 * NEAR * b for a in guesses for b in guesses if a != b), (name, what)
            assert len(guesses) == len(set(guesses))
        for thought in table.get("thoughts", ()):
            assert set(thought["of"]) <= set(asked[name])
            assert set(thought) == {"of", "guess", *LANGUAGES}


@pytest.mark.parametrize("language", ["vi", "zh"])
def test_every_word_that_a_prediction_asks_for_is_translated(language):
    lessons = [lesson.read_text("utf-8") for lesson in CHAPTERS.glob("*/lesson.py")]
    items = {item for lesson in lessons for _, units in ASKING.findall(lesson) for item in ast.literal_eval(units)}
    words = {item for item in items if re.search(r"\b[a-z]{3,}\b", item)} - {"number % k"}  # which is code
    assert {"slowdown", "whole table", "ring", "false alarms"} <= words
    speak(language)
    assert [item for item in words if named(item) == item] == []


def test_the_wrong_numbers_of_the_race_come_from_their_thoughts():
    """Counted anew: one transfer of 160 MB over a free link takes 10 ms."""
    one, workers = 10.0, 4
    shard = one / workers
    numbers = {
        "GPU 0": {2 * one, one, (workers - 1) * one, 2 * workers * one},
        "CPU": {2 * one, one, workers * one, 2 * (workers - 1) * one},
        "shards": {(workers - 1) * shard, 2 * shard, 2 * workers * shard, 4 * (workers - 1) * shard, 2 * 3 * one},
    }
    for what, right in numbers.items():
        assert {thought["guess"] for thought in known()["race"]["thoughts"] if what in thought["of"]} == right


def test_the_wrong_speed_ups_come_from_their_thoughts():
    """Counted anew: one GPU computes for 200 ms, four synchronise for the time of the race."""
    for what, sync in RIGHT.items():
        numbers = {4, 200 / sync, 200 / (200 + sync)}
        told = {thought["guess"] for thought in known()["speed-up"]["thoughts"] if what in thought["of"]}
        assert sorted(told) == pytest.approx(sorted(numbers), rel=0.001)


# ---------------------------------------------------------------- kept


def test_a_guess_is_there_when_the_notebook_runs_again(place, monkeypatch):
    predict("race", ASKED, guess=RIGHT)
    assert workspaces.contents(place) == {"guess-race.json": {"asked": ASKED, "guess": RIGHT}}
    again = predict("race", ASKED)
    assert again.guess == RIGHT and "You guessed: GPU 0 60 ms, CPU 80 ms" in repr(again)
    assert not again.reveal(RIGHT).hidden
    (place.parent / "vi").mkdir()
    monkeypatch.chdir(place.parent / "vi")  # the notebook in another language
    assert predict("race", ASKED, guess=dict.fromkeys(ASKED)).guess == RIGHT
    assert predict("other", ASKED).guess is None


def test_what_was_asked_otherwise_is_asked_again():
    predict("race", ASKED, guess=RIGHT)
    assert predict("race", {"GPU 0": "ms"}).guess is None
    assert predict("race", ASKED | {"CPU": "s"}).guess is None


@pytest.mark.parametrize(
    "content", ["", "[]", "7", "{", '{"asked": 1}', None, '{"guess": {"GPU 0": -1, "CPU": 1, "shards": 1}}']
)
def test_a_file_that_says_nothing_sensible_is_no_guess(content, place):
    predict("race", ASKED, guess=RIGHT)
    path = place / "guess-race.json"
    if content is None:
        path.write_bytes(b"\xff\xfe\x00")
    else:
        path.write_text(content.replace("{", '{"asked": {"GPU 0": "ms", "CPU": "ms", "shards": "ms"}, ', 1), "utf-8")
    assert predict("race", ASKED).guess is None


def test_a_folder_that_cannot_be_written_to_does_not_stop_the_notebook(place):
    place.write_text("a file where the folder should be", "utf-8")
    race = predict("race", ASKED, guess=RIGHT)
    assert race.guess == RIGHT and not race.reveal(RIGHT).hidden


def test_a_program_that_is_no_notebook_writes_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    workspaces.leave(folder, monkeypatch)
    predict("race", ASKED, guess=RIGHT)
    assert predict("race", ASKED).guess == RIGHT
    assert list(folder.iterdir()) == [] and kept.folder() is None


# ---------------------------------------------------------------- fields


def fields(race):
    from d2lps.notebook.fields import Fields

    return Fields(race)


def test_nothing_is_committed_before_every_field_can_be_meant(place):
    race = predict("race", ASKED)
    form = fields(race)
    assert [field.description for field in form.entries.values()] == list(ASKED)
    assert [row.children[1].value for row in form.children[:3]] == ["ms"] * 3
    form.button.click()
    assert race.guess is None and form.status.value.count("a number is missing") == 3
    for field, entry in zip(form.entries.values(), ["60", "80 ms", "<b>"], strict=True):
        field.value = entry
    form.button.click()
    assert race.guess is None and workspaces.contents(place) == {}
    assert "80 ms is more than a number" in form.status.value and "GPU 0" not in form.status.value
    assert "&lt;b&gt; is not a number" in form.status.value and "<b>" not in form.status.value
    assert not any(field.disabled for field in form.entries.values())


def test_a_commitment_shows_the_answer_and_closes_the_fields(place):
    race = predict("race", ASKED)
    form, revealed = fields(race), race.reveal(RIGHT)
    updates = []
    revealed._handle = type("Handle", (), {"update": lambda self, shown: updates.append(shown._repr_mimebundle_())})()
    for field, entry in zip(form.entries.values(), ["60", "20", "15"], strict=True):
        field.value = entry
    form.button.click()
    assert race.guess == off(CPU=20) and "guess-race.json" in workspaces.contents(place)
    assert all(field.disabled for field in form.entries.values()) and "You guessed" in form.status.value
    assert len(updates) == 1 and "<details>" not in updates[0]["text/html"]

    form.button.click()  # "Guess again" only opens the fields
    assert race.guess == off(CPU=20) and not any(field.disabled for field in form.entries.values())
    form.entries["CPU"].value = "80"
    form.button.click()
    assert race.guess == RIGHT and len(updates) == 2


def test_fields_show_the_guess_made_before():
    predict("race", ASKED, guess=RIGHT | {"GPU 0": 62.5})
    form = fields(predict("race", ASKED))
    assert [field.value for field in form.entries.values()] == ["62.5", "80", "15"]
    assert all(field.disabled for field in form.entries.values())


@pytest.mark.parametrize("colour", [*COLOURS.values(), OTHER])
def test_a_bar_is_seen_on_light_and_on_dark(colour):
    assert all(contrast(colour, paper) >= 3 for paper in THEME["paper"])


def test_without_widgets_the_program_says_how_to_guess(monkeypatch):
    shown = []
    monkeypatch.setitem(sys.modules, "d2lps.notebook.fields", None)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle["text/plain"]))
    predict("race", ASKED)._ipython_display_()
    assert "You have not guessed yet." in shown[0] and "guess={…}" in shown[0] and "GPU 0, CPU, shards" in shown[0]


# ---------------------------------------------------------------- in a kernel

CELLS = [
    "import d2lps\nrace = d2lps.predict('race', {'GPU 0': 'ms', 'CPU': 'ms'})\nrace",
    "race.reveal({'GPU 0': 60, 'CPU': 80})",
]


def test_a_kernel_goes_on_without_a_learner_and_shows_the_answer_once_there_is_one(place, tmp_path):
    def run(*cells):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        NotebookClient(book, timeout=60, resources={"metadata": {"path": str(place.parent / "en")}}).execute()
        return [cell.outputs for cell in book.cells]

    (asked,), (answer,) = run(*CELLS)
    assert "d2lps-asked" in asked.data["text/html"] and "application/vnd.jupyter.widget-view+json" not in asked.data
    assert asked.data["text/plain"].endswith("You have not guessed yet.")
    assert answer.data["text/plain"].startswith("You have not guessed yet") and "<details>" in answer.data["text/html"]
    assert workspaces.contents(place) == {}

    (asked,), (answer,), _ = run(*CELLS, "race.commit({'GPU 0': 60, 'CPU': 80})")
    assert "You guessed: GPU 0 60 ms" in asked.data["text/plain"] and "<details>" not in answer.data["text/html"]
    (asked,), (answer,) = run(*CELLS)  # a new kernel
    assert "You guessed: GPU 0 60 ms" in asked.data["text/plain"] and "<details>" not in answer.data["text/html"]


def test_a_changed_thought_lets_its_section_be_read_again_and_no_other():
    from dataclasses import replace

    from course.book.agree import digests
    from course.book.library import Book
    from course.book.reading import passages

    book = Book(CHAPTERS.parent)
    chapter = book.chapter("01-data-parallelism")
    first, *others = chapter.predictions["race"]["thoughts"]
    race = chapter.predictions["race"] | {"thoughts": [first | {"vi": "khác"}, *others]}
    changed = chapter.predictions | {"race": race}
    before, after = digests(book, chapter), digests(book, replace(chapter, predictions=changed))
    assert [section for section in before if before[section] != after[section]] == ["predict"]
    files = {passage.files["vi"] for passage in passages(chapter) if passage.kind == "prediction"}
    assert files == {"chapters/01-data-parallelism/predictions.toml"}
