"""A small valid chapter in three languages, and a function that breaks it."""

import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

from course.book.__main__ import main
from course.book.library import Book
from d2lps.messages import LANGUAGES

SLUG = "01-small"
LESSON = f"chapters/{SLUG}/lesson.py"
EN, VI, ZH = (f"chapters/{SLUG}/{language}.md" for language in ("en", "vi", "zh"))

# What a site needs besides.
ABOUT = 'about = { en = "Two.", vi = "Hai.", zh = "两种。" }\n'
SOLUTION = "import math\n\nN = 2\n\n\ndef star(n, size, rate):\n    return N * math.ceil(n * size / rate)\n"
HINT = '[star]\n[[star.hints]]\nen = "Count."\nvi = "Đếm."\nzh = "数一数。"\n'
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 30"/>'

FILES = {
    "chapters/toc.toml": """
[[chapter]]
slug = "01-small"
title = { en = "Two ways", vi = "Hai cách", zh = "两种办法" }
""",
    "chapters/references.toml": """
[li-2014]
authors = "Li et al."
year = "2014"
title = "Scaling distributed machine learning with the parameter server"
venue = "OSDI"
url = "https://example.org/li"
""",
    "chapters/terms.toml": """
names = ["GPU", "NVLink"]

[symbols]
n = "workers"
m = "machines"
t = "a time"
S = "bytes"
b = "bandwidth"

[[term]]
en = "worker"
vi = "máy thợ"
zh = "工作节点"
no_vi = ["công nhân"]
no_zh = ["工人"]
first = ["vi", "zh"]

[[term]]
en = "gradient"
vi = "gradient"
zh = "梯度"

[[term]]
en = "bandwidth"
vi = "băng thông"
zh = "带宽"
warn_vi = ["dải thông"]
warn_zh = ["频宽"]

[[term]]
en = "link"
vi = "đường liên kết"
zh = "链路"

[[term]]
en = "link speed"
vi = "tốc độ đường truyền"
zh = "线速"

[[term]]
en = "latency"
vi = "độ trễ"
zh = "延迟"

[[term]]
en = "step"
vi = "bước"
zh = "步"
common = true
""",
    "d2lps/messages/en.toml": "step = \"step {step} sends 16\u00a0MB from 'gpu0'\"\n",
    "d2lps/messages/vi.toml": "step = \"bước {step} gửi 16\u00a0MB từ 'gpu0'\"\n",
    "d2lps/messages/zh.toml": "step = \"第 {step} 步从 'gpu0' 发送 16\u00a0MB\"\n",
    "img/star.svg": "<svg/>\n",
    "img/line.svg": "<svg/>\n",
    LESSON: """\
# %% language
import d2lps

d2lps.speak("en")

# %% star
time = 160e6 / 16e9
time

# %% exercise-star
def star(n, size, rate):
    # TODO
    ...

# %% last
d2lps.text("step", step=1)
""",
    EN: """\
# Two ways

Four workers hold one gradient of 160\u00a0MB each, and all of them need the sum.

[[language]]

## Everything through one worker {#one}

Every worker sends its gradient to GPU 0, as described by [[cite:li-2014]].

A link carries 16\u00a0GB/s, so one transfer takes $t = S/b$, that is 10\u00a0ms.

The sum then goes back the same way, and it takes just as long, whatever the number of workers.

[[figure:star|The gradients meet on GPU 0.]]

Run it:

[[star]]

- The bandwidth is the limit.
- The latency is not; see `time`.

## Your turn {#turn}

Write the time for $n$ workers.

[[exercise-star]]

Then look at the message:

[[last]]
""",
    VI: """\
# Hai cách

Bốn máy thợ (worker) đều giữ một gradient 160\u00a0MB, và máy nào cũng cần tổng.

[[language]]

## Mọi thứ đi qua một máy thợ {#one}

Máy thợ nào cũng gửi gradient của mình tới GPU 0, như [[cite:li-2014]] mô tả.

Đường liên kết chở được 16\u00a0GB/s, nên một lần truyền mất $t = S/b$, tức 10\u00a0ms.

Sau đó tổng đi ngược lại theo đúng đường ấy và cũng mất chừng ấy thời gian, dù có bao nhiêu máy thợ.

[[figure:star|Các gradient gặp nhau trên GPU 0.]]

Hãy chạy thử:

[[star]]

- Băng thông là giới hạn.
- Độ trễ thì không; hãy xem `time`.

## Đến lượt bạn {#turn}

Hãy viết thời gian cho $n$ máy thợ.

[[exercise-star]]

Rồi hãy xem thông điệp:

[[last]]
""",
    ZH: """\
# 两种办法

四个工作节点（worker）各持有一份 160\u00a0MB 的梯度，大家都要得到总和。

[[language]]

## 一切经过一个工作节点 {#one}

每个工作节点都把自己的梯度发给 GPU 0，做法见 [[cite:li-2014]]。

一条链路每秒传 16\u00a0GB/s，所以传一次要 $t = S/b$，也就是 10\u00a0ms。

随后总和原路返回，花的时间一样长，无论工作节点有多少。

[[figure:star|各份梯度在 GPU 0 上汇合。]]

运行一下：

[[star]]

- 受限的是带宽。
- 延迟不是；请看 `time`。

## 轮到你了 {#turn}

请写出 $n$ 个工作节点所需的时间。

[[exercise-star]]

然后看看这条消息：

[[last]]
""",
    f"chapters/{SLUG}/exercises.toml": """
[star.title]
en = "The time of a star"
vi = "Thời gian của hình sao"
zh = "星形所需的时间"

[star.hints]
en = ["Which link is used most?"]
vi = ["Đường liên kết nào bận nhất?"]
zh = ["哪条链路最忙？"]
""",
}


@cache
def _built() -> Path:
    """Build and agree the chapter once for all tests."""
    root = Path(tempfile.mkdtemp())
    # At exit, but not in a forked child: unlike atexit, Finalize looks at the process.
    Finalize(None, shutil.rmtree, (root,), exitpriority=0)
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert main(["--root", str(root), "build"]) == 0
    assert main(["--root", str(root), "agree", "--all"]) == 0
    return root


def small(root: Path) -> Book:
    """Copy the built and agreed chapter into a folder."""
    shutil.copytree(_built(), root, dirs_exist_ok=True)
    return Book(root)


def with_site(root: Path, front: str = "# {0}\n\n[[race]]\n\n[[chapters]]\n", more: str = ABOUT) -> Path:
    """Copy the chapter with what a site needs besides: front pages, a solution, a hint; return the book's folder.

    ``front`` is the text of the front pages, ``more`` the lines that follow in ``toc.toml``.
    """
    small(root)
    toc = root / "chapters/toc.toml"
    toc.write_text(toc.read_text("utf-8") + more, "utf-8")
    (root / "chapters/front").mkdir()
    for language in LANGUAGES:
        (root / f"chapters/front/{language}.md").write_text(front.format(language), "utf-8")
    (root / f"chapters/{SLUG}/solutions.py").write_text(SOLUTION, "utf-8")
    (root / f"chapters/{SLUG}/exercises.toml").write_text(HINT, "utf-8")
    (root / "img/star.svg").write_text(PICTURE, "utf-8")
    return root


def edit(book: Book, name: str, old: str, new: str) -> None:
    """Replace the first ``old`` in a file of the book."""
    path = book.root / name
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def files(book: Book) -> dict[str, bytes]:
    """Return path → bytes of every file of the book."""
    return {str(path.relative_to(book.root)): path.read_bytes() for path in book.root.rglob("*") if path.is_file()}


def changes(text: str, named: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (path, old, new, what follows) of changes of two lines: ``NAME: old ⇒ new``, and under it what follows.

    In them ¶ ends a line, and ∅ is nothing. Lines that begin with # are passed over.
    """
    lines = [line for line in text.strip().split("\n") if not line.startswith("#")]
    for change, follows in zip(lines[::2], lines[1::2], strict=True):
        name, _, change = change.partition(": ")
        old, new = (part.replace("¶", "\n").replace("∅", "") for part in change.split(" ⇒ "))
        yield named[name], old, new, follows.removeprefix("    ")
