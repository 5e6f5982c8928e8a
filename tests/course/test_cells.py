"""Cells as learners write them in Jupyter: grading and a real IPython shell come to the same verdict."""

import json
import os
import subprocess
import sys

import pytest

from course.classes import inside, notebooks, slices
from d2lps import check_exercise
from d2lps.notebook.grading.course import CHAPTERS

# The right answer, if `one` is 1.
IMPORTS = "from fractions import Fraction\nfrom d2lps import Plan, Send\n"
ANSWER = """def own_gpu(gpus):
    owners = {f"g{j}": gpu for j, gpu in enumerate(gpus)}
    shares = {key: Fraction(one, len(gpus)) for key in owners}
    collect = [Send(gpu, owner, key, "add") for key, owner in owners.items() for gpu in gpus if gpu != owner]
    give_back = [Send(owner, gpu, key, "copy") for gpu, owner, key, _ in collect]
    return Plan(gpus, shares, [collect, give_back])
"""
BOTH = IMPORTS + ANSWER


def indented(code: str, by: str = "    ") -> str:
    return "".join(by + line for line in code.splitlines(keepends=True))


def prompted(code: str) -> str:
    lines = code.splitlines()
    return "\n".join((">>> " if line[0] != " " else "... ") + line for line in lines)


# Form → cells, the last one with the answer. Those under `wrong` bind 2, or nothing.
RIGHT = {
    "help": ["one = 1", BOTH + "own_gpu?"],
    "help-before": ["one = 1", "?own_gpu\n" + BOTH],
    "help-twice": ["one = 1\none??", BOTH],
    "indented": ["one = 1", indented(BOTH)],
    "prompts": [">>> one = 1", prompted(IMPORTS) + "\n" + prompted(ANSWER)],
    "ipython-prompts": ["In [1]: one = 1", BOTH],
    "command": ["!pwd\none = 1", BOTH + "!pwd"],
    "command-bound": ["here = !pwd\none = 1", BOTH],
    "command-inside": ["if True:\n    !pwd\n    one = 1", ANSWER.replace("\n", "\n    !true\n", 1) + IMPORTS],
    "line-magic": ["%precision 3\none = 1", "%config Completer.use_jedi = False\n" + BOTH],
    "magic-bound": ["home = %env HOME\none = 1", BOTH],
    "time-statement": ["%time one = 1", BOTH],
    "time-value": ["one = %time 3 - 2", BOTH],
    "time-two": ["%time two = 2; one = two - 1", BOTH],
    "time-in-a-block": ["for _ in range(2):\n    %time one = 1", BOTH],
    "time-cell": ["%%time\none = 1", "%%time\n" + BOTH],
    "time-cell-with-magics": ["%%time\n%time one = 1\n!pwd", "%%capture\n%precision 3\n" + BOTH],
    "capture": ["%%capture output\none = 1", BOTH],
    "time-without-percent": ["time one = 1", BOTH],
    "other-cell-magic": ["one = 1", "%%html\n<b>one = 2</b>", BOTH],
    "other-single-line": ["one = 1", "pwd", BOTH],
    "await": ["import asyncio\nasync def get():\n    await asyncio.sleep(0)\n    return 1", "one = await get()", BOTH],
    "async-for": ["async def get():\n    yield 2\n    yield 1", "async for one in get():\n    pass", BOTH],
    "async-with": [
        "class Door:\n    async def __aenter__(self):\n        return 1\n"
        "    async def __aexit__(self, *_):\n        pass",
        "async with Door() as one:\n    pass",
        BOTH,
    ],
    "await-comprehension": ["async def get(n):\n    return n", "[one] = [await get(n) for n in [1]]", BOTH],
    "for": ["for one in (3, 2, 1):\n    pass", BOTH],
    "for-unpacking": ["for _, (one, *rest) in [(0, (1, 2, 3))]:\n    pass", BOTH],
    "for-else": ["for _ in ():\n    pass\nelse:\n    one = 1", BOTH],
    "while": ["one = 4\nwhile one > 1:\n    one -= 1", BOTH],
    "with": ["from contextlib import nullcontext", "with nullcontext(1) as one:\n    pass", BOTH],
    "with-inside": ["from contextlib import nullcontext", "with nullcontext():\n    one = 1", BOTH],
    "walrus": ["print(one := 1)", BOTH],
    "walrus-in-a-comprehension": ["sizes = [(one := n) for n in (2, 1)]", BOTH],
    "walrus-in-if": ["if (one := 1) > 0:\n    pass", BOTH],
    "match": ["match [1, 2]:\n    case [one, *_]:\n        pass", BOTH],
    "match-mapping": ["match {'a': 1, 'b': 2}:\n    case {'a': int() as one, **rest}:\n        pass", BOTH],
    "import-as": [
        "import math as m, fractions as f",
        "from operator import index as i",
        "one = i(int(m.exp(0)))",
        BOTH,
    ],
    "import-dotted": ["import xml.dom\nimport xml.sax", "one = int(bool(xml.dom and xml.sax))", BOTH],
    "import-star": ["from operator import *", "one = sub(3, 2)", BOTH],
    "augmented": ["one = 3", "one -= 1", "one //= 2", BOTH],
    "from-itself": ["one = 3", "one = one - 2", BOTH],
    "value-then": ["two = 2", "one = two - 1", "two = 7", BOTH],
    "try": ["try:\n    import no_such_thing\nexcept ImportError as error:\n    one = len([error])", BOTH],
    "try-else-finally": [
        "try:\n    pass\nexcept OSError:\n    one = 3\nelse:\n    one = 2\nfinally:\n    one = 1",
        BOTH,
    ],
    "del": ["one = 1\ntwo = 2\ndel two", BOTH],
    "del-other-item": ["table = {'a': 1, 'b': 2}\ndel table['b']", "(one,) = table.values()", BOTH],
    "decorator": [
        "def twice(function):\n    return lambda: function() // 2",
        "@twice\ndef get():\n    return 2",
        "one = get()",
        BOTH,
    ],
    "decorated-answer": [
        "import functools\none = 1",
        IMPORTS + "@functools.lru_cache\n" + ANSWER.replace("(gpus):", "(gpus):\n    gpus = [*gpus]"),
        "old = own_gpu\ndef own_gpu(gpus):\n    return old(tuple(gpus))",
    ],
    "class-body": [
        "class Sizes:\n    two = 2\n    one = two - 1\n    def get(self):\n        return self.one",
        "one = Sizes().get()",
        BOTH,
    ],
    "class-global": ["class Sizes:\n    global one\n    one = 1", BOTH],
    "class-attribute": ["class Sizes:\n    pass", "Sizes.one = 1", "one = Sizes.one", BOTH],
    "star": ["one, *rest = 1, 2, 3", BOTH],
    "star-last": ["(*rest, [one]) = 2, 3, [1]", BOTH],
    "chained": ["two = one = 1", BOTH],
    "annotated": ["one: int = 1", BOTH],
    "future": [
        "from __future__ import annotations",
        "one = 1",
        IMPORTS + ANSWER.replace("(gpus)", "(gpus: NotThere) -> Nor[This]", 1),
    ],
    "global": ["def begin():\n    global one\n    one = 1", "begin()", BOTH],
    "global-through": ["def begin():\n    global one\n    one = 1\ndef go():\n    begin()", "go()", BOTH],
    "global-lambda": [
        "table = {}\nkeep = lambda n: table.update(one=n)",
        "keep(2)\nkeep(1)",
        "one = table['one']",
        BOTH,
    ],
    "filled": ["table = []", "for n in range(2):\n    table.append(n)", "one = table[1]", BOTH],
    "filled-by-key": ["table = {}", "table['one'] = 1", BOTH.replace("one", "table['one']")],
    "tensor-in-place": ["import torch\nt = torch.zeros(1)", "t.add_(1)", "one = int(t)", BOTH],
    "in-if": ["one = 1", "if True:\n" + indented(BOTH)],
    "semicolons": ["one = 2; one = 1;", BOTH],
    "continued": ["one = \\\n  1", BOTH],
    "percent-in-a-text": ["text = '''\n%time one = 2\n!pwd\n'''\none = 5 \\\n% 4", BOTH],
    "question-in-a-text": ["why = 'one?'  # one?\none = 1", BOTH],
    "display": ["display('one')\none = 1", ANSWER.replace("\n", "\n    display(gpus)\n", 1) + IMPORTS],
    "line-ends": ["one = 1", BOTH.replace("\n", "\r\n")],
    "called-later": ["def get():\n    return later", "later = 1", "one = get()", BOTH],
    "default": ["two = 1", IMPORTS + ANSWER.replace("(gpus)", "(gpus, one=two)", 1)],
}
WRONG = {
    "for": ["for one in (1, 2):\n    pass", BOTH],
    "del": ["one = 1", "del one", BOTH],
    "except-as": ["one = 1\ntry:\n    1 / 0\nexcept ZeroDivisionError as one:\n    pass", BOTH],
    "augmented": ["one = 1", "one += 1", BOTH],
    "cell-magic": ["one = 2", "%%html\none = 1", BOTH],
    "comprehension": ["one = 2", "sizes = [one for one in (3, 1)]", BOTH],
    "time": ["one = 1", "%time one = 2", BOTH],
    "class-body": ["one = 2", "class Sizes:\n    one = 1", BOTH],
    "global": ["one = 1\ndef begin():\n    global one\n    one = 2", "begin()", BOTH],
    "unclosed": ["one = 1", BOTH + "("],
    "nothing": [BOTH],
}
FORMS = {f"{kind} {name}": forms[name] for kind, forms in (("right", RIGHT), ("wrong", WRONG)) for name in forms}


SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from d2lps import check_exercise
shell, verdicts = InteractiveShell.instance(), {}
shell.history_manager.enabled = False
for name, cells in json.load(open(sys.argv[1])).items():
    shell.reset(new_session=False)
    for cell in cells:
        shell.run_cell(cell, silent=True)
    try:
        verdicts[name] = bool(check_exercise("own-gpu", shell.user_ns["own_gpu"]).passed)
    except BaseException as error:
        verdicts[name] = False
json.dump(verdicts, open(sys.argv[2], "w"))
"""


def graded(sources: list[str]) -> bool:
    cells = [slices.cell(f"exercise-{number}", source) for number, source in enumerate(sources)]
    if cells[-1].error:
        return False
    try:
        answer = inside.Inside(None, [])._load(slices.needed(["own_gpu"], cells, [], len(cells) - 1), "own_gpu")
        return bool(check_exercise("own-gpu", answer).passed)
    except NameError:
        return False


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory) -> dict[str, bool]:
    place = tmp_path_factory.mktemp("shell")
    (place / "forms.json").write_text(json.dumps(FORMS))
    environment = os.environ | {"PYTHONPATH": str(CHAPTERS.parent), "IPYTHONDIR": str(place)}
    command = [sys.executable, "-c", SHELL, str(place / "forms.json"), str(place / "verdicts.json")]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((place / "verdicts.json").read_text())


@pytest.mark.parametrize("form", FORMS)
def test_grading_and_jupyter_agree(jupyter, form):
    assert graded(FORMS[form]) == jupyter[form] == form.startswith("right")


@pytest.mark.parametrize(
    ("source", "command"),
    [("one = !pwd", "one = !pwd"), ("one = %env HOME", "one = %env"), ("%%capture one\n2", "one = %%capture")],
)
def test_the_value_of_a_command_is_missing_with_a_note(source, command):
    cells = [slices.cell("a", "one = 1"), slices.cell("b", source), slices.cell("c", BOTH)]
    run = slices.needed(["own_gpu"], cells, [], 2)
    assert slices.not_run(run) == [command]
    assert not graded(["one = 1", source, BOTH])


def test_no_command_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    commands = "!touch a\nfiles = !touch b\n%system touch c\nx = %sx touch d\n!!touch e\n"
    commands += "get_ipython().system('touch f')\n"
    graded([commands + "%%bash\ntouch g", commands + "one = len([files, x])", "%%bash\ntouch h", BOTH])
    assert [*tmp_path.iterdir()] == []


def test_only_what_an_answer_needs_runs():
    texts = [
        "ran = []",
        "ran.append(1)\nnet = ran.append(2)",
        "one = 2\none = 1",
        "for i in range(3):\n    one + i",
        BOTH,
    ]
    cells = [slices.cell(str(at), text) for at, text in enumerate(texts)]
    assert [(name, run) for name, _, run in slices.needed(["own_gpu"], cells, [])] == [("2", [1]), ("4", [0, 1, 2])]


def test_a_stub_with_help_is_untouched():
    texts = notebooks.all_texts()["own-gpu"]
    stub = texts.stub + "\n"
    for source in (stub, stub + "own_gpu?", "%%time\n" + stub, indented(stub), stub + "!pwd"):
        assert notebooks.untouched(texts, slices.cell("a", source))
    assert not notebooks.untouched(texts, slices.cell("a", stub + "one = 1"))
