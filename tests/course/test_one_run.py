"""A notebook that is executed once for the readers of all languages: what happens once, and what each of them sees."""

import nbformat
import pytest
from helpers.outputs import seen
from nbclient.exceptions import CellExecutionError

from course.book.lesson import read_cells, speaking
from course.site.execute import execute
from d2lps.messages import LANGUAGES, LanguageError, language, only, speak, text_in, unmarked
from d2lps.messages.marked import marked

LESSON = """# %% language
import d2lps

d2lps.speak("en")

# %% printed
runs = []
print(len(runs), d2lps.ring(["a", "b"]), end="|")
runs.append(1)
print("then")

# %% raised
try:
    d2lps.sharded([])
except d2lps.PlanError as error:
    print(f"{error}!")
    kept = error
kept

# %% late
class Late:
    asked = []

    def __repr__(self):
        self.asked.append(d2lps.messages.language())
        return f"{d2lps.messages.text('player.play'):-<6}|"

late = Late()
late

# %% table
d2lps.table("strategy", "shared", rows=[["GPU 0", 0.25], ["shards", None]])

# %% guess
guess = d2lps.predict("race", {"CPU": "ms"})
guess

# %% hidden
guess.reveal({"CPU": 80})

# %% verdict
d2lps.check_exercise("own-gpu", lambda gpus: 7)

# %% child
import subprocess
import sys

said = "from d2lps.messages import text; print(text('player.play'))"
print(subprocess.run([sys.executable, "-c", said], capture_output=True, text=True).stdout)

# %% broken
class Broken:
    def __repr__(self):
        raise ValueError

try:
    display(Broken())
except ValueError:
    print("broken")

# %% after
d2lps.messages.language(), late.asked, runs
"""
WRONG = """# %% wrong
import d2lps

d2lps.sharded([])
"""


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Language → what is seen of each cell."""
    folder = tmp_path_factory.mktemp("chapter")
    write(folder, LESSON)
    return {name: dict(seen(book)) for name, book in execute(folder).items()}


def write(folder, lesson):
    for name in LANGUAGES:
        codes = [nbformat.v4.new_code_cell(speaking(cell.source, name), id=cell.id) for cell in read_cells(lesson)]
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(name, id="prose"), *codes])
        nbformat.write(book, folder / f"{name}.ipynb")


def test_each_reader_sees_their_own_words(books):
    def each(id: str) -> list[str]:
        return [books[name][id] for name in LANGUAGES]

    english, vietnamese, chinese = each("printed")
    assert english.startswith("0 2 nodes: a b\nshares: ") and "step 1" in english and "|then" in english
    assert vietnamese.startswith("0 2 ") and "bước 1" in vietnamese and "第 1 步" in chinese
    assert all(
        said.startswith(f"{begins}") for said, begins in zip(each("child"), ("Play", "Phát", "播放"), strict=True)
    )
    assert len(set(each("raised"))) == 3 and all("!\n" in said for said in each("raised"))
    assert all("✗" in said for said in each("verdict")) and len(set(each("verdict"))) == 3
    assert all("80 ms" in said for said in each("hidden")) and len(set(each("hidden") + each("guess"))) == 6
    assert not any(sign in said for book in books.values() for said in book.values() for sign in "⟦⟠⟧")


def test_columns_of_words_line_up_in_each_language(books):
    assert [books[name]["late"] for name in LANGUAGES] == ["Play--|", "Phát--|", "播放----|"]
    for name in LANGUAGES:
        head, *rows = books[name]["table"].splitlines()[:3]
        at = head.index(text_in(name, "table.shared"))
        assert [row[at:] for row in rows] == ["0.25", "–"] and {row[at - 3 : at] for row in rows} == {"   "}


def test_a_cell_acts_once_and_restores_the_readers_language(books):
    """Also after something that cannot be shown."""
    for name in LANGUAGES:
        assert books[name]["after"].split("\n")[0] == "('en', ['en', 'vi', 'zh'], [1])"


def test_a_cell_that_raises_is_not_hidden(tmp_path):
    write(tmp_path, WRONG)
    with pytest.raises(CellExecutionError, match="PlanError.*: a plan needs at least one node, but none was given\n"):
        execute(tmp_path)


def test_marked_texts_keep_their_values():
    for texts in (["a", "b", "c"], ["a\nb", "c\nd", "e\nf"], ["a", "b\nc", "d"], ["", "x", ""], ["4", "4", "4"]):
        for number, name in enumerate(LANGUAGES):
            assert unmarked({"x": [f"1 {marked(texts)} {marked(texts)}", 2]}, name) == {
                "x": [f"1 {texts[number]} {texts[number]}", 2]
            }
    assert marked(["a\nsame", "b\nsame", "c\nsame"]) == "⟦a⟠b⟠c⟧\nsame"


def test_the_language_in_force_comes_back():
    speak("zh")
    with pytest.raises(LanguageError):
        only("vi", lambda: speak("fr"))
    assert language() == "zh" and only("en", lambda: (language(), only("vi", language))) == ("en", "vi")
