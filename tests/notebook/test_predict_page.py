"""A prediction on a page without a kernel: as strict as Python, the same bars and sentences, kept, hidden till then."""

import json
import random
import re

import pytest
from helpers import browser as browsers
from helpers import workspaces
from helpers.axe import CONTRAST, grave
from playwright.sync_api import expect

from d2lps import predict, speak
from d2lps.messages import LANGUAGES
from d2lps.notebook.predict import known
from d2lps.notebook.predict_page import ASK, PredictionError, number_text

chromium = browsers.chromium

ASKED = {"GPU 0": "ms", "CPU": "ms", "shards": "ms"}
RIGHT = {"GPU 0": 60, "CPU": 80, "shards": 15}
MORE = {"ideal": {"GPU 0": 20, "CPU": 20, "shards": 5}}
ASKS = "What do you think? GPU 0 (ms), CPU (ms), shards (ms)."
GUESSES = [
    {"GPU 0": 20, "CPU": 20, "shards": 15},
    {"GPU 0": 75, "CPU": 32, "shards": 999},
    {"GPU 0": 1, "CPU": 81, "shards": 7.5},
]
PAGE = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>page</title><style>:root{color-scheme:light dark}</style><main>%s</main>"
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    return workspaces.enter(tmp_path / "course", monkeypatch)


def form(name="race", asked=ASKED, right=RIGHT, **columns) -> str:
    """The question, prose, and the answer, as they are where nobody has guessed."""
    made = predict(name, asked)
    return made._repr_html_() + "<p>prose</p>" + made.reveal(right, **columns)._repr_html_()


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a form as a page that asks the network for nothing, in a browser that has kept nothing."""
    asked, wrong = [], []
    own = chromium.new_context(viewport={"width": 360, "height": 900})  # clearing the storage of others may come late

    def open_it(shown: str, before: str = "", **media):
        (tmp_path / "page.html").write_text(PAGE % shown, "utf-8")
        page, home = own.new_page(), browsers.serve(own, tmp_path)
        page.emulate_media(**media)
        page.add_init_script(before)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda line: wrong.append(line.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{home}/page.html")
        return page

    yield open_it
    own.close()
    assert wrong == [] and {*asked} <= {f"{browsers.HOME}/page.html"}


def enter(page, *entries) -> None:
    for field, entry in zip(page.get_by_role("textbox").all(), entries, strict=True):
        field.fill(str(entry))
    page.get_by_role("button").click()


def seen(page, inside="main") -> str:
    """What can be read there, on one line."""
    return re.sub(r"\s+", " ", page.locator(inside).first.inner_text()).strip()


def bars(page, inside) -> list[float]:
    return page.locator(f"{inside} td > span").evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")


# ---------------------------------------------------------------- hidden, then shown


@pytest.mark.parametrize("spoken", ["vi", "zh"])
def test_a_guess_shows_the_bars_and_sentences_that_python_shows(opened, spoken):
    speak(spoken)
    page = opened(form(**MORE))
    for guess in GUESSES:
        made = predict("race", ASKED, guess=guess)
        page.evaluate(
            "html => { document.querySelector('.python')?.remove();"
            "document.body.insertAdjacentHTML('beforeend', `<div class=python>${html}</div>`) }",
            made.reveal(RIGHT, **MORE)._repr_html_(),
        )
        enter(page, *guess.values())
        assert seen(page, ".d2lps-answer") == seen(page, ".python")
        assert bars(page, ".d2lps-answer") == pytest.approx(bars(page, ".python"), abs=0.2)
        assert seen(page, "[role=status]") == made.said()
        assert page.locator(".d2lps-answer").count() == 1 and not page.locator("details").is_visible()
        page.get_by_role("button").click()  # "Guess again" opens the fields, and the answer stays
        assert seen(page, ".d2lps-answer") == seen(page, ".python")
        assert page.evaluate("document.activeElement.tagName") == "INPUT"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_units_have_scales_of_their_own_and_numbers_keep_their_order(opened):
    asked, right, guess = {"5": "%", "3": "", "x": "%"}, {"5": 50, "3": 0, "x": 0.25}, {"5": 100, "3": 0, "x": 12345}
    page = opened(form("own", asked, right))
    enter(page, *guess.values())
    shown = predict("own", asked, guess=guess).reveal(right)
    assert seen(page, ".d2lps-answer").endswith(" ".join(shown.thoughts).replace("\u00a0", " "))
    page.evaluate("html => { document.querySelector('main').innerHTML += html }", shown._repr_html_())
    both = page.locator("table:visible").all_inner_texts()
    assert len(both) == 2 and both[0] == both[1] and "12\u00a0340%" in both[0]


def test_a_logarithmic_scale_is_the_same_with_and_without_a_kernel(opened):
    asked, right, guess = {"a": "ms", "b": "ms"}, {"a": 2e9, "b": 6.68e5}, {"a": 100, "b": 1}
    page = opened(form("own", asked, right))
    enter(page, *guess.values())
    shown = predict("own", asked, guess=guess).reveal(right)._repr_html_()
    page.evaluate("html => document.body.insertAdjacentHTML('beforeend', `<div class=python>${html}</div>`)", shown)
    assert seen(page, ".d2lps-answer") == seen(page, ".python")
    widths = bars(page, ".d2lps-answer")
    assert widths == pytest.approx(bars(page, ".python"), abs=0.2)
    # From 0.1 on: 100 is 3 powers of ten away, 2·10⁹ 10.3, 1 is 1, 668 000 is 6.8.
    assert [width / widths[1] for width in widths] == pytest.approx([0.291, 1, 0.097, 0.662], abs=0.01)
    assert "begin at 0.1 ms" in seen(page, ".d2lps-answer") and "668 000 ms" in seen(page, ".d2lps-answer")
    cuts = page.locator("td > span").evaluate_all("all => all.map(e => getComputedStyle(e).maskImage)")
    assert all("repeating-linear-gradient" in cut for cut in cuts)


def test_the_answer_is_invisible_until_requested(opened):
    page = opened(form())
    told = page.locator("main").aria_snapshot()
    assert 'textbox "GPU 0 ms"' in told and 'button "That is my guess"' in told
    assert "80 ms" not in told and "80 ms" not in seen(page) and not page.locator("table").is_visible()
    page.get_by_text("Show the answer without a guess").click()
    assert "80 ms" in seen(page) and page.evaluate("localStorage.length") == 0


def test_without_scripts_there_is_a_sentence_and_no_field(chromium, tmp_path):
    (tmp_path / "page.html").write_text(PAGE % form(), "utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert seen(page).startswith(
        "What do you think? GPU 0 (ms), CPU (ms), shards (ms). You have not guessed yet. prose"
    )
    assert "80 ms" not in seen(page) and page.locator("form").count() == 0
    context.close()


def test_in_print_the_answer_stands_without_a_guess_or_with_it(opened):
    page = opened(form())
    page.emulate_media(media="print")
    assert seen(page) == f"{ASKS} prose GPU 0 model 60 ms CPU model 80 ms shards model 15 ms"
    page.emulate_media(media="screen")
    enter(page, 60, 80, 15)
    page.emulate_media(media="print")
    assert seen(page) == (
        f"{ASKS} You guessed: GPU 0 60 ms, CPU 80 ms, shards 15 ms. prose "
        "GPU 0 you 60 ms model 60 ms CPU you 80 ms model 80 ms shards you 15 ms model 15 ms GPU 0, CPU, shards: right."
    )


def test_what_was_guessed_in_a_kernel_is_not_asked_again():
    made = predict("race", ASKED, guess=RIGHT)
    assert "<script" not in made._repr_html_() + made.reveal(RIGHT)._repr_html_()


# ---------------------------------------------------------------- entries


def test_bad_entries_have_their_sentence_beside_them_and_nothing_is_taken(opened):
    page = opened(form())
    enter(page, "", "80 ms", "15")
    errors = page.locator("[data-error]:visible")
    assert errors.all_inner_texts() == [
        "✗ GPU 0: a number is missing.",
        "✗ CPU: 80 ms is more than a number. The field is already in ms: write only the number of ms.",
    ]
    first = page.get_by_role("textbox").first
    assert first.evaluate("e => e === document.activeElement && e.getAttribute('aria-invalid')") == "true"
    assert page.locator(f"#{first.get_attribute('aria-describedby')}").inner_text() == errors.first.inner_text()
    assert "80 ms" not in seen(page, ".d2lps-revealed") and page.evaluate("localStorage.length") == 0
    enter(page, "60", "<b>{unit}", "15")
    assert errors.all_inner_texts() == ["✗ CPU: <b>{unit} is not a number. Write it in digits, such as 12.5."]
    page.get_by_role("textbox").nth(1).fill("80")
    page.keyboard.press("Enter")
    assert errors.count() == 0 and "CPU you 80 ms model 80 ms" in seen(page, ".d2lps-revealed")
    first.press("7")  # the fields are closed now
    assert first.input_value() == "60"


ENTRIES = [
    *("80", " 80 ", "8e1", "８０", "+80", "80.", "15。5", ".5", "0.5", "1E2", "12.5", "1e-2"),
    *("80 ms", "0.06 s", "80%", "6 0", "sixty", "nan", "inf", "1e999", "1e9999", "0x10", "1_000", "１，５", "…", "e5"),
    *"−3|-3|-0.5|0|-0|0.015|15000|12 500|1 2 500|12 5000|0.0000001|99999999|7,5|1,000|7,||  |\u3000".split("|"),
    "x" * 41 + "𝄞",
]


@pytest.mark.parametrize("spoken", LANGUAGES)
def test_an_entry_is_read_as_python_reads_it(opened, spoken):
    speak(spoken)
    page = opened("")
    page.add_script_tag(content=ASK)
    for name, asked in {"race": ASKED, "moved": {"number % k": "%"}, "own": {"x": "", "y": "GB"}}.items():
        made = predict(name, asked)
        data = json.loads(re.search(r'application/json">(.*?)</script>', made._repr_html_())[1])
        for at, what in enumerate(asked):
            found = page.evaluate("([data, at, all]) => all.map(each => number(data, at, each))", [data, at, ENTRIES])
            for entry, read in zip(ENTRIES, found, strict=True):
                try:
                    wanted = made.read(what, entry)
                except PredictionError as error:
                    wanted = str(error)
                assert read == wanted, (what, entry)


def test_numbers_are_written_and_judged_as_python_does(opened):
    page = opened("")
    page.add_script_tag(content=ASK)
    dice = random.Random(16)
    values = [0, 0.0001, 0.00001, 0.00012345, 9999, 9999.5, 99995, 12345, 1e21, 1e-9, 0.12345, 1.25, 2.5, 1234.5, 0.5]
    values += [round(10 ** dice.uniform(-7, 7), dice.randrange(8)) for _ in range(1000)]
    written = page.evaluate("all => all.map(each => quantity(each, '%'))", values)
    assert written == [number_text(value, "%") for value in values]

    asked = {"GPU 0": "ms", "CPU": "ms", "shards": "ms"}
    made, shown = predict("race", asked), form()
    of_form, of_answer = (json.loads(each) for each in re.findall(r'application/json">(.*?)</script>', shown))
    guesses = [each["guess"] * part for each in known()["race"]["thoughts"] for part in (0.96, 1, 1.04, 1.06, 1.25)]
    guesses += [
        RIGHT["CPU"] * each for each in (0.01, 0.2, 1.05, 1.0500001, 1.15, 1.25, 1.35, 99.4, 99.7, 100.5, 101.5)
    ]
    for at, what in enumerate(asked):
        judged = page.evaluate(
            "([page, answer, at, all]) => all.map(each => thought(each, answer.right[at], answer.thoughts[at], page))",
            [of_form, of_answer, at, guesses],
        )
        assert judged == [made._thought(what, guess, RIGHT[what]) for guess in guesses]


# ---------------------------------------------------------------- kept


def test_a_guess_is_kept_by_the_browser_also_for_other_languages(opened, tmp_path):
    page = opened(form(**MORE))
    enter(page, 20, 20, 15)
    shown = seen(page)
    page.reload()
    expect(page.get_by_role("button")).to_have_text("Guess again")
    assert seen(page) == shown and page.get_by_role("textbox").first.input_value() == "20"
    speak("vi")
    (tmp_path / "page.html").write_text(PAGE % form(**MORE), "utf-8")
    page.reload()
    expect(page.get_by_role("status")).to_have_text("Bạn đã đoán: GPU 0 20 ms, CPU 20 ms, phân mảnh 15 ms.")
    page.get_by_role("button").click()
    enter(page, 60, 80, 15)
    page.reload()
    expect(page.get_by_role("status")).to_contain_text("CPU 80 ms")


@pytest.mark.parametrize(
    "kept",
    [
        "{",
        "null",
        "7",
        '{"asked":[["GPU 0","ms"]],"guess":[60]}',
        '{"asked":[["GPU 0","ms"],["CPU","s"],["shards","ms"]],"guess":[60,80,15]}',
        *(
            f'{{"asked":{json.dumps([*ASKED.items()])},"guess":{guess}}}'.replace(", ", ",")
            for guess in (None, [60, -1])
        ),
    ],
)
def test_an_unreadable_entry_is_no_guess(opened, kept):
    page = opened(form(), f"localStorage.setItem('d2lps-guess-race', {json.dumps(kept)})")
    assert seen(page, "[role=status]") == "You have not guessed yet." and page.locator(".d2lps-answer").count() == 0


def test_a_browser_that_keeps_nothing_does_not_matter(opened):
    refuse = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no') } })"
    page = opened(form(), refuse)
    enter(page, 60, 80, 15)
    assert "GPU 0, CPU, shards: right." in seen(page)
    page.reload()
    assert page.locator(".d2lps-asked form").count() == 1
    assert seen(page, "[role=status]") == "You have not guessed yet."


# ---------------------------------------------------------------- looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_grave(opened, scheme):
    page, rules = opened(form(**MORE), color_scheme=scheme), CONTRAST if scheme == "dark" else ()
    enter(page, 60, "x", "")
    assert grave(page, rules=rules) == []
    enter(page, 60, 80, 15)
    assert grave(page, rules=rules) == []


def test_prediction_is_not_broader_than_a_phone(opened):
    speak("vi")  # which has the longest words
    asked = {"tree, 160 MB": "ms", "0-2-4-6-1-3-5-7": "ms"}
    page = opened(form("tree", asked, dict.fromkeys(asked, 80), ideal=dict.fromkeys(asked, 20)))
    enter(page, "80 ms", 12345678)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    enter(page, 80, 90)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
