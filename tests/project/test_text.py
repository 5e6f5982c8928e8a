"""The sentences: the same keys and placeholders in three languages, and no unused ones."""

import ast
from pathlib import Path
from string import Formatter

import pytest

import course
import d2lps
from d2lps.messages import LANGUAGES, LanguageError, language, named, sentences, speak, text
from d2lps.view.tables import table

REFUSALS = "plan error unit number topology nvidia trace profile tensor reduction processes ranks store scaling".split()
SOURCES = [path for each in (d2lps, course) for path in sorted(Path(each.__file__).parent.rglob("*.py"))]


def placeholders(sentence):
    return sorted(field for _, field, _, _ in Formatter().parse(sentence) if field is not None)


def test_the_languages_have_a_file_each_and_no_other():
    files = (Path(d2lps.__file__).parent / "messages").glob("*.toml")
    assert {path.name for path in files} == {f"{name}.toml" for name in LANGUAGES} == {"en.toml", "vi.toml", "zh.toml"}


@pytest.mark.parametrize("other", ["vi", "zh"])
def test_the_same_keys_and_placeholders_in_every_language(other):
    english, translated = sentences("en"), sentences(other)
    assert list(english) == list(translated)
    assert {k: placeholders(v) for k, v in english.items()} == {k: placeholders(v) for k, v in translated.items()}


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_sentence_says_something(name):
    assert [key for key, value in sentences(name).items() if not isinstance(value, str) or not value.strip()] == []


@pytest.mark.parametrize("other", ["vi", "zh"])
def test_every_refusal_is_translated(other):
    english, translated = sentences("en"), sentences(other)
    said = tuple(f"{table}." for table in REFUSALS)
    alike = [key for key in english if key.startswith(said) and english[key] == translated[key]]
    assert {*alike} <= {"store.role.out", "scaling.left-out.between"}


def test_english_is_spoken_until_another_language_is_chosen():
    assert language() == "en" and text("plan.step", step=1) == "step 1"
    speak("vi")
    assert language() == "vi" and text("plan.step", step=1) == "bước 1"
    speak("zh")
    assert language() == "zh" and text("plan.step", step=1) == "第 1 步"


@pytest.mark.parametrize("unknown", ["fr", "EN", "", None, ["en"], 7])
def test_an_unknown_language_is_refused_and_the_old_one_stays(unknown):
    speak("vi")
    with pytest.raises(LanguageError) as error:
        speak(unknown)
    assert str(error.value) == f"unknown language {unknown!r}: d2lps speaks en, vi, zh"
    assert language() == "vi"


def test_braces_in_a_value_stay_as_they_are():
    assert text("plan.step", step="{step} {0}") == "step {step} {0}"


def said():
    """Yield the keys, or their beginnings, that the code uses: text("key"), text(f"part.{…}"), PlanError("reason")."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", None))
            first = node.args[0] if name != "text_in" else node.args[1]
            constant = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if name in ("text", "text_in", "server_text") and constant:
                yield first.value, True
            elif (
                name in ("text", "text_in", "server_text")
                and isinstance(first, ast.JoinedStr)
                and isinstance(first.values[0], ast.Constant)
            ):
                yield first.values[0].value, False


def test_no_key_is_asked_for_that_is_not_written():
    keys = sentences("en")
    missing = [key for key, whole in said() if not (key in keys if whole else any(k.startswith(key) for k in keys))]
    assert missing == []


def test_each_sentence_is_used():
    whole = {key for key, is_whole in said() if is_whole}
    beginnings = ("names.", *(key for key, is_whole in said() if not is_whole))  # names: see the test below
    assert [key for key in sentences("en") if key not in whole and not key.startswith(beginnings)] == []


def test_names_in_programs_are_shown_in_the_current_language():
    speak("zh")
    assert named("4 servers") == "4 台服务器" and named("GPU 0") == "GPU 0"
    assert named("slowdown") == named("times as long") == "用时是几倍" and named("servers") == "servers"
    assert repr(table("strategy", rows=[["shards"]])).endswith("分片")
    speak("vi")
    assert named("shards") == "phân mảnh" and named("many servers") == "many servers"
    assert named("ring, 160 MB") == "vòng, 160 MB" and named("2 rings") == "2 vòng"
