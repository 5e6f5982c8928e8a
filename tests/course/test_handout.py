"""Handouts, sites without solutions, a teacher's own cases, and a choice of chapters and exercises."""

import ast
import html
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
from helpers import workspaces
from helpers.classes import hand_in, notebook, solving
from helpers.classes import told as reported
from helpers.small_site import bare

import d2lps
from course import handout
from course.book.__main__ import main as book_main
from course.book.findings import BookError
from course.book.library import Book
from course.site import browser, proof, pyodide
from course.site.build import build
from course.site.pages import Site
from course.site.pdf import bound
from course.site.runs import ChapterRun
from d2lps.messages import LANGUAGES
from d2lps.notebook.grading import course as grading_course
from d2lps.notebook.grading.course import CHAPTERS, ExerciseError, all_texts, every_text

ROOT = CHAPTERS.parent
EXAMPLE = ROOT / "examples/variants"
MINE = 'chapters = ["02", "01"]\nexercises = ["own-gpu", "labels"]\n'


@pytest.fixture
def not_run(monkeypatch):
    """Return runs without outputs, so that texts lead to players that are not there; no faults but these count.

    What is the same in every choice is left out, and so is "try it", for which all cells would run.
    """
    found, none = proof.faults, {language: {} for language in LANGUAGES}
    bare(monkeypatch)
    monkeypatch.setattr(pyodide, "is_there", lambda root: False)
    monkeypatch.setattr(proof, "faults", lambda site: [each for each in found(site) if "#player:" not in each])
    return lambda slug: ChapterRun(none, "2026-01-31", "")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Choose two chapters and an exercise of each."""
    file = tmp_path / "mine.toml"
    file.write_text(MINE, "utf-8")
    monkeypatch.setenv("D2LPS_TOC", str(file))
    return file


# ---- no solution's text


def lines(code: str) -> list[str]:
    """Return the lines of code that say something, without spaces."""
    bare = (re.sub(r"\s+", "", line.split("  #")[0]) for line in code.splitlines())
    return [line for line in bare if len(line) > 3 and not re.match(r"#|import\b|from\b|def\w+\(", line)]


def runs_of(code: str, length: int) -> set[str]:
    """Return all runs of so many lines; all lines if there are fewer."""
    found = lines(code)
    return {"\n".join(found[i : i + length]) for i in range(max(1, len(found) - length + 1))}


def secrets() -> dict[str, set[str]]:
    """Return exercise → three lines in a row of its solution that neither its stub nor its chapter has."""
    found = {}
    for id, texts in every_text().items():
        source, name = (texts.folder / "solutions.py").read_text("utf-8"), id.replace("-", "_")
        function = next(node for node in ast.parse(source).body if getattr(node, "name", "") == name)
        shown = "\n".join(lines((texts.folder / "lesson.py").read_text("utf-8")))
        found[id] = {run for run in runs_of(ast.get_source_segment(source, function), 3) if run not in shown}
        assert found[id]
    return found


def told(files: dict[str, str]) -> list[str]:
    """Return the exercises whose solution, or last hint, stands in a file, with the name of the file."""
    bare = {name: "\n".join(lines(text)) for name, text in files.items()}
    secret = secrets().items()
    found = [f"{id}: {name}" for id, runs in secret for name, text in bare.items() if any(run in text for run in runs)]
    last = {telling(hint) for texts in every_text().values() for hint in texts.table["hints"][-1].values()}
    letters = {name: re.sub(r"\W", "", text) for name, text in files.items()}
    return found + [f"{hint}: {name}" for hint in last for name, text in letters.items() if hint in text]


def telling(hint: str) -> str:
    """Return the longest part of a hint without code and formulas, as letters; the whole hint if that is short."""
    longest = max((re.sub(r"\W", "", part) for part in re.split(r"\$[^$]*\$|`[^`]*`", hint)), key=len)
    return longest if len(longest) > 24 else re.sub(r"\W", "", hint)


def as_read(name: str, content: bytes) -> str:
    """Return a file as its readers see it: the cells of a notebook, a page without marks."""
    text = content.decode("utf-8", "ignore")
    if name.endswith(".ipynb"):
        return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    if name.endswith("exercises.toml"):
        return repr(tomllib.loads(text))
    if name.endswith(".html"):
        return html.unescape(re.sub(r"<[^>]*>", "", text))
    return text


def test_a_handout_has_all_that_a_learner_needs_and_no_solution(tmp_path):
    written = handout.write(Book(solutions=False), tmp_path)
    assert [path.name for path in written] == [f"d2lps-{d2lps.__version__}-{language}.zip" for language in LANGUAGES]
    for language, path in zip(LANGUAGES, written, strict=True):
        with zipfile.ZipFile(path) as archive:
            top = f"{path.stem}/"
            files = {name.removeprefix(top): archive.read(name) for name in archive.namelist()}
            archive.extractall(tmp_path)
        assert told({name: as_read(name, content) for name, content in files.items()}) == []
        assert not any("solutions" in name or name.startswith("tests") for name in files)
        measured = "\n".join(name for name in files if name.startswith("benchmarks/"))  # chapters 13 and 15 read these
        assert "measured/gpu-" in measured and "measured/step-" in measured and ".py" not in measured
        books = {name for name in files if name.endswith(".ipynb")}
        assert books == {f"chapters/{slug}/{language}.ipynb" for slug in Book().contents}
        assert not [name for name in books if "d2lps.solution(" in as_read(name, files[name])]
        assert "AGENTS.md" in files and f"make lab-{language}" in files["README.md"].decode()
    program = (
        "import d2lps; from d2lps.notebook.grading.course import CHAPTERS; print(CHAPTERS)\n"
        "verdict = d2lps.check_exercise('own-gpu', d2lps.sharded); print(verdict.passed)\n"
        "print(len(d2lps.check_exercise('own-gpu', lambda gpus: d2lps.aggregate_at(gpus, 'gpu0')).ladder))\n"
        "try: d2lps.solution('own-gpu')\nexcept ValueError as error: print(error)"
    )
    home = tmp_path / written[0].stem
    run = {"cwd": home, "env": os.environ | {"PYTHONPATH": str(home)}, "capture_output": True, "text": True}
    said = subprocess.run([sys.executable, "-c", program], **run, timeout=200).stdout.splitlines()
    assert said[:3] == [str(home / "chapters"), "True", "3"] and "no solution of 'own-gpu'" in said[3] and not said[4:]
    laid = subprocess.run([sys.executable, "-m", "course.book", "lab", "--no-start"], **run, timeout=200)
    assert laid.returncode == 0, laid.stderr
    assert (home / "workspace/en/13-choosing.ipynb").is_file()


def test_pages_and_paper_without_solutions_have_none_of_any_chapter(not_run):
    """What else a site has is made of these; test_site_build.py builds a whole one without solutions."""
    book = Book(solutions=False)
    chapters = {slug: book.chapter(slug) for slug in book.contents}
    runs, files = {slug: not_run(slug) for slug in chapters}, dict(browser._packed(book))
    for language in LANGUAGES:
        site, paper = (Site(book, chapters, language, runs, [], on_paper) for on_paper in (False, True))
        pages = [site.chapter(slug) for slug in chapters]
        files |= {f"{language}/{page.path}": site.framed(page, pages).encode() for page in pages}
        files[f"{language}/paper.html"] = bound(paper).encode()  # from which the PDF is printed
    assert told({name: as_read(name, content) for name, content in files.items()}) == []
    page = files["en/01-data-parallelism.html"].decode()
    assert "<summary>Hint 3 of 3</summary>" in page and "<summary>Solution</summary>" not in page
    assert f"Edition {d2lps.__version__}." in page


def test_what_is_looked_for_is_found_where_it_stands():
    """Else the tests above would find nothing whatever is handed out."""
    files = {path.name: path.read_text("utf-8") for path in (CHAPTERS / "01-data-parallelism").glob("*.py")}
    table = (CHAPTERS / "01-data-parallelism/exercises.toml").read_bytes()
    found = told(files | {"exercises.toml": as_read("exercises.toml", table)})
    for id in ("own-gpu", "overlap", "split"):
        assert f"{id}: solutions.py" in found
    assert sum(each.endswith("exercises.toml") for each in found) == 9


def test_a_hint_that_cannot_be_left_out_is_named(tmp_path):
    folder = tmp_path / "chapters/01-small"
    folder.mkdir(parents=True)
    (tmp_path / "chapters/toc.toml").write_text("", "utf-8")
    for language in LANGUAGES:
        (folder / f"{language}.md").write_text("# T\n", "utf-8")
    (folder / "lesson.py").write_text("", "utf-8")
    (folder / "exercises.toml").write_text('[one]\nhints = [{ en = "a" }, { en = "b" }]\n', "utf-8")
    with pytest.raises(BookError, match=r"write each hint as a table \[\[id.hints\]\]"):
        handout.exercises(Book(tmp_path, solutions=False), "01-small")


# ---- a teacher's own cases


def by_heart(gpus):
    """Solve the published cases only: with other names it adds up on one GPU."""
    return d2lps.sharded(gpus) if all(name.startswith("gpu") for name in gpus) else d2lps.aggregate_at(gpus, gpus[0])


def test_a_case_of_ones_own_refuses_what_knows_only_the_published_ones(monkeypatch, capsys):
    assert d2lps.check_exercise("own-gpu", by_heart).passed
    monkeypatch.setenv("D2LPS_VARIANTS", str(EXAMPLE))
    verdict = d2lps.check_exercise("own-gpu", by_heart)
    assert not verdict.passed and "red, green, blue, white, black" in verdict.sentence
    assert d2lps.check_exercise("own-gpu", every_text()["own-gpu"].solution()).passed


def test_cases_that_the_solution_does_not_pass_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(handout, "all_texts", lambda: {id: all_texts()[id] for id in ("own-gpu", "overlap")})
    monkeypatch.setenv("D2LPS_VARIANTS", "")
    assert handout.main(["variants", str(EXAMPLE)]) == 0
    assert "Cases of your own: own-gpu: 2, overlap: 1, others: none." in capsys.readouterr().out
    wrong = (EXAMPLE / "01-data-parallelism.py").read_text("utf-8").replace("own_gpu_case(9)", "overlap_case(2, 2)")
    (tmp_path / "01-data-parallelism.py").write_text(wrong, "utf-8")
    assert handout.main(["variants", str(tmp_path)]) == 1
    assert "01-data-parallelism.py, own-gpu: " in capsys.readouterr().out


def test_variants_that_cannot_be_read_are_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("D2LPS_VARIANTS", str(tmp_path / "gone"))
    with pytest.raises(ExerciseError, match="there is no folder .*gone with files such as"):
        d2lps.check_exercise("own-gpu", d2lps.sharded)
    monkeypatch.setenv("D2LPS_VARIANTS", str(tmp_path))
    for name, cases, sentence in (
        ("01.py", "{}", "01.py belongs to no chapter"),
        (
            "01-data-parallelism.py",
            "{'overlapp': []}",
            "has cases for 'overlapp', which is no exercise of that chapter",
        ),
    ):
        (tmp_path / name).write_text(f"CASES = {cases}", "utf-8")
        with pytest.raises(ExerciseError, match=sentence):
            d2lps.check_exercise("own-gpu", d2lps.sharded)
        (tmp_path / name).unlink()
    (tmp_path / "02-ring.py").write_text("CASES = {}", "utf-8")
    assert d2lps.check_exercise("own-gpu", d2lps.sharded).passed  # no file for this chapter
    (tmp_path / "01-data-parallelism.py").write_text("CASES = {", "utf-8")
    with pytest.raises(
        ExerciseError, match="01-data-parallelism.py cannot be used, because it does not load: SyntaxError"
    ):
        d2lps.check_exercise("own-gpu", d2lps.sharded)


# ---- a choice of chapters and exercises


def test_a_choice_decides_what_the_book_has(mine):
    book = Book()
    assert list(book.contents) == ["02-ring", "01-data-parallelism"] and list(all_texts()) == ["own-gpu", "labels"]
    assert list(d2lps.progress().chapters) == list(book.contents)
    whole = (CHAPTERS / "02-ring/en.md").read_text("utf-8")
    text = book.chapter("02-ring").texts["en"].source
    assert "[[exercise-labels]]" in text and "3. **Labels are not device numbers**" in text
    assert "[[exercise-both-ways]]" not in text and "1. **" not in text.partition("{#exercises}")[2]
    begin, end = (part.strip() for part in re.split(r"(?ms)^1\. \*\*.*\[\[exercise-[\w-]+\]\]$", whole))
    assert text.startswith(begin) and text.rstrip().endswith(end)


@pytest.mark.parametrize("slug", [path.parent.name for path in sorted(CHAPTERS.glob("*/exercises.toml"))])
def test_every_exercise_can_be_left_out_in_every_language(slug, mine):
    mine.write_text(f'chapters = ["{slug}"]\nexercises = []\n', "utf-8")
    chapter = Book().chapter(slug)
    assert chapter.exercises == {} and not any(cell.exercise for cell in chapter.cells)
    for language, text in chapter.texts.items():
        whole = (CHAPTERS / slug / f"{language}.md").read_text("utf-8")
        rest = re.findall(r"(?m)^\d+\. \*\*.*", text.source)
        assert "[[exercise-" not in text.source and len(rest) == len(re.findall(r"(?m)^\d+\. \*\*.*", whole)) - len(
            re.findall(r"\[\[exercise-", whole)
        )


def test_a_handout_has_the_choice(mine):
    book = Book(solutions=False)
    toc = tomllib.loads(handout.contents(book))["chapter"]
    assert [entry["slug"] for entry in toc] == ["02-ring", "01-data-parallelism"]
    code = dict(handout.code_of(book, "02-ring"))
    table = tomllib.loads(code["exercises.toml"])
    assert list(table) == ["labels"] and len(table["labels"]["hints"]) == 3
    assert "exercise-both-ways" not in code["lesson.py"] and "solutions.py" not in code


def test_a_site_has_the_choice_and_its_name(mine, tmp_path, not_run):
    site = build(Book(), tmp_path / "site", not_run, pdf=False, say=lambda _: None)
    assert not list(site.rglob("*13-choosing*"))
    page = (site / "vi/02-ring.html").read_text("utf-8")
    assert 'id="cell-exercise-labels"' in page and "exercise-both-ways" not in page
    assert f"Ấn bản {d2lps.__version__} · mine." in page
    assert "exercise-both-ways" not in (site / "zh/notebooks/02-ring.ipynb").read_text("utf-8")


@pytest.mark.parametrize(
    "written, sentence",
    [
        ('chapters = ["01"', "mine.toml, which D2LPS_TOC names, cannot be used"),
        ("chapters = [1]", r"cannot be used \(chapters\)"),
        ('chapter = ["01"]', r"cannot be used \(chapter\); it may have the lines chapters"),
        ('chapters = ["99"]', "there is no chapter '99'; there are 00, 01"),
    ],
)
def test_a_choice_that_cannot_be_used_is_refused_in_a_sentence(written, sentence, mine):
    mine.write_text(written, "utf-8")
    with pytest.raises((BookError, ExerciseError), match=sentence):
        Book().contents  # noqa: B018
    mine.unlink()
    with pytest.raises(ExerciseError, match="No such file"):
        Book().contents  # noqa: B018


def test_an_exercise_that_does_not_exist_cannot_be_chosen(mine):
    mine.write_text('exercises = ["own-gpus"]', "utf-8")
    with pytest.raises(ExerciseError, match="there is no exercise 'own-gpus'"):
        all_texts()


def test_a_class_is_graded_by_the_choice_and_by_ones_own_cases(mine, tmp_path, monkeypatch):
    monkeypatch.setenv("D2LPS_VARIANTS", str(EXAMPLE))
    learned = (
        "def own_gpu(gpus):\n    known = all(name.startswith('gpu') for name in gpus)\n"
        "    return sharded(gpus) if known else aggregate_at(gpus, gpus[0])"
    )
    first = "01-data-parallelism"
    hand_in(tmp_path / "class", "an", notebook(first, {"own-gpu": solving("own-gpu")}))
    hand_in(tmp_path / "class", "mei", notebook(first, {"own-gpu": learned}))
    command = [sys.executable, "-m", "course.classes", "class", "--out", "report", "--language", "en"]
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=300
    )
    report = reported(tmp_path / "report")
    assert run.returncode == 0 and report["edition"] == f"{d2lps.__version__} · mine"
    assert {(row["learner"], row["exercise"]): row["state"] for row in report["answers"]} == {
        ("an", "own-gpu"): "solved",
        ("mei", "own-gpu"): "tried",
    }
    assert not any(row["notes"] for row in report["answers"]) and not any(book["notes"] for book in report["notebooks"])
    page = (tmp_path / "report/class.html").read_text("utf-8")
    assert f"Edition {d2lps.__version__} · mine" in page and "Cases of your own: own-gpu: 2" in page


# ---- an exercise of a teacher's own


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """A teacher's own exercise beside chapter 01, as ``make exercise`` writes it."""
    assert handout.main(["exercise", "ring-bytes", "--folder", str(tmp_path / "ours")]) == 0
    (tmp_path / "mine.toml").write_text('chapters = ["01"]\nexercises = ["ring-bytes"]\nown = "ours"\n')
    monkeypatch.setenv("D2LPS_TOC", str(tmp_path / "mine.toml"))
    return tmp_path / "ours/ring-bytes.toml"


def in_our_notebook(language: str, code: str | None = None) -> dict:
    """Return the notebook of a handout, with this code in the place of the stub."""
    book = json.loads(dict(handout.own_files(language))[f"chapters/own/{language}.ipynb"])
    *_, cell = book["cells"]
    if code:
        cell["source"] = f'{code}\nd2lps.check_exercise("ring-bytes", ring_bytes)'
    return book


def test_exercise_of_ones_own_goes_from_the_template_to_the_grade(ours, tmp_path, monkeypatch):
    (handed, _), *_ = [*handout.own_files("vi")]
    files = dict(handout.own_files("vi"))
    text = files[handed].decode()
    assert handed == "chapters/own/ring-bytes.toml" and "solution =" not in text and "2 * (n - 1)" not in text
    assert len(ours.read_text("utf-8").splitlines()) <= 45
    solving, one_way = "def ring_bytes(n, nbytes):\n    return {}2 * (n - 1) / n * nbytes", "0.5 * "
    learners = {"an": solving.format(""), "mei": solving.format(one_way), "minh": None, "lan": "ring_bytes = print"}
    for (learner, code), language in zip(learners.items(), ("en", "vi", "zh", "vi"), strict=True):
        hand_in(tmp_path / "class", learner, json.dumps(in_our_notebook(language, code)))
    command = [sys.executable, "-m", "course.classes", "class", "--out", "report", "--language", "en", "--partial"]
    run = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "capture_output": True, "timeout": 300}
    assert subprocess.run(command, **run).returncode == 0
    report = reported(tmp_path / "report")
    assert {row["learner"]: (row["state"], row["mistake"]) for row in report["answers"]} == {
        "an": ("solved", ""), "mei": ("tried", "one-way"), "minh": ("untouched", "todo"),
        "lan": ("tried", "nothing-returned"),
    }  # fmt: skip
    scores = {learner: summary["scores"]["ring-bytes"] for learner, summary in report["learners"].items()}
    assert scores == {"an": 1, "mei": 0.25, "minh": 0, "lan": 0}  # half of nothing is right for one GPU
    page = (tmp_path / "report/learners/mei.html").read_text("utf-8")
    assert 'lang="vi"' in page and "So many bytes add up the gradients." in page
    # A learner has the folder, and no choice.
    home = tmp_path / "handout/chapters/own"
    home.mkdir(parents=True)
    (home / "ring-bytes.toml").write_text(text, "utf-8")
    monkeypatch.setattr(grading_course, "CHAPTERS", home.parent)
    monkeypatch.delenv("D2LPS_TOC")
    for path in CHAPTERS.glob("*/exercises.toml"):
        (home.parent / path.parent.name).mkdir()
        (home.parent / path.parent.name / "exercises.toml").write_bytes(path.read_bytes())
    verdict = d2lps.check_exercise("ring-bytes", lambda n, nbytes: (n - 1) / n * nbytes)
    assert (
        verdict.mistake == "one-way" and "n = 2, nbytes = 100: your answer is 50.0, but 100 would" in verdict.sentence
    )
    with pytest.raises(ExerciseError, match="this edition has no solution"):
        d2lps.solution("ring-bytes")


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ('title = "The bytes that a ring sends"', "", "`title` is missing"),
        ('title = "The bytes that a ring sends"', "title = 3", "`title` is no text"),
        ('title = "The bytes that a ring sends"', "title = { en = 3 }", "`title` is no text"),
        (
            'title = "The bytes that a ring sends"',
            'title = { en = "Bytes", fr = "Octets" }',
            "`title` is in the language `fr`, which the course does not have; it has en, vi, zh",
        ),
        ("def ring_bytes(n, nbytes):\n    return None", "def ring(n):\n    return None", "no function `ring_bytes`"),
        (
            "given = [1, 100]",
            "given = [1]",
            "case 4 has to be { given = […], right = … }, with a value for each of: n, nb",
        ),
        ("given = [1, 100]", "given = 2", "case 4 has to be { given = […]"),
        ("hints = [", "hint = [", "`hint` is unknown; an exercise has cases, hints, minutes"),
        ("right = 0 }", "right = 0, lost = 1 }", "case 4 names the mistake `lost`, but [mistakes] has no hint"),
        ("minutes = 10", "minutes = ", "ring-bytes.toml is not an exercise: Invalid value (at line 4"),
    ],
)
def test_fault_of_an_own_exercise_is_told_in_a_sentence(ours, old, new, sentence):
    source = ours.read_text("utf-8")
    assert old in source
    ours.write_text(source.replace(old, new), "utf-8")
    with pytest.raises(ExerciseError, match=re.escape(sentence)):
        all_texts()


def test_jupyterlab_does_not_start_with_a_faulty_own_exercise_and_names_the_fault(ours, capsys):
    ours.write_text(ours.read_text("utf-8").replace("minutes = 10", ""), "utf-8")
    assert book_main(["lab", "--no-start"]) == 1
    assert "ring-bytes.toml is not an exercise: `minutes` is missing" in capsys.readouterr().err


def test_progress_lists_own_exercises_after_the_chapters(ours, tmp_path, monkeypatch):
    workspaces.enter(tmp_path / "course", monkeypatch)
    assert repr(d2lps.progress()).splitlines()[-1] == "Exercises of your course: – ring-bytes"
    assert d2lps.check_exercise("ring-bytes", all_texts()["ring-bytes"].solution()).passed
    shown = d2lps.progress()
    assert repr(shown).splitlines()[-1] == "Exercises of your course: ✓ ring-bytes"
    assert "Exercises of your course</th>" in shown._repr_html_()


def test_own_exercise_whose_solution_is_wrong_or_would_stay_is_not_handed_out(ours):
    source = ours.read_text("utf-8")
    ours.write_text(source.replace("return 2 * (n - 1)", "return 3 * (n - 1)"), "utf-8")
    with pytest.raises(BookError, match="its solution is not right: n = 2, nbytes = 100: your answer is 150.0"):
        [*handout.own_files("en")]
    one_line = "solution = 'def ring_bytes(n, nbytes): return 2 * (n - 1) / n * nbytes'"
    ours.write_text(re.sub(r"(?ms)^solution = .*?^'''$", one_line, source), "utf-8")
    with pytest.raises(BookError, match="between two lines with three quotes"):
        [*handout.own_files("en")]


def test_name_that_an_exercise_has_is_not_taken_again(tmp_path, capsys):
    for name in ("own-gpu", "2-bytes", "Ring"):
        assert handout.main(["exercise", name, "--folder", str(tmp_path)]) == 1
        assert "take another name" in capsys.readouterr().err


def test_folder_without_own_exercises_is_refused(ours):
    ours.unlink()
    with pytest.raises(ExerciseError, match="cannot be used .*ours/.*toml"):
        all_texts()


@pytest.mark.parametrize(
    "table, ask, sentence",
    [
        ({"passed": {"en": "In {time}."}}, lambda it: it.passed(), "new.passed cannot be shown: 'time' is missing"),
        ({}, lambda it: it.passed(), "new.passed cannot be shown: 'en' is missing"),
        ({"mistakes": {"odd": {"vi": "Lạ."}}}, lambda it: it.hint("odd"), "new.mistakes.odd cannot be shown: 'en'"),
        ({}, lambda texts: texts.hint("odd"), "new.mistakes.odd cannot be shown: 'en' is missing"),
        ({"hints": [{"zh": "想想。"}]}, lambda texts: texts.ladder, "new.hints cannot be shown: 'en' is missing"),
    ],
)
def test_text_that_an_author_forgot_is_named_in_a_sentence(table, ask, sentence, tmp_path):
    with pytest.raises(ExerciseError, match=re.escape(sentence)):
        ask(grading_course.Texts("new", tmp_path, table))
    assert grading_course.Texts("new", tmp_path, {}).hint("inexact")
