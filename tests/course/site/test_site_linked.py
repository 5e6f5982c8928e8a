"""A public name in a cell links to its description if the cell means that name, and otherwise to nothing."""

import re
from html import unescape

import pytest

from course.site.linked import linked

KNOWN = {
    name: f"api.html#{name.removeprefix('d2lps.')}"
    for name in "d2lps.ring d2lps.run d2lps.kvstore d2lps.kvstore.create d2lps.cost d2lps.cost.shared d2lps.d2l "
    "d2lps.Plan d2lps.Plan.from_json d2lps.train.by_store".split()
}


def links(source: str, *before: str) -> list[str]:
    """``name→id`` of every link."""
    html = linked(source, KNOWN, before)
    assert unescape(re.sub("<.*?>", "", html)) == source, "nothing but marks is added"
    return [
        f"{unescape(re.sub('<.*?>', '', name))}→{id}"
        for id, name in re.findall(r'<a href="api.html#(.*?)">(.*?)</a>', html)
    ]


@pytest.mark.parametrize(
    "source, found",
    [
        ("import d2lps\nd2lps.ring(gpus)", ["ring→ring"]),
        ("import d2lps\nd2lps.kvstore.create('local')", ["create→kvstore.create"]),
        ("import d2lps\nd2lps.d2l.plot(x)", ["d2l→d2l"]),
        ("import d2lps\nx = 'a\u2028b'\nd2lps.ring", ["ring→ring"]),  # which is no new line to Python
        ("import d2lps as d\nd.Plan.from_json(text)", ["from_json→Plan.from_json"]),
        ("import d2lps.kvstore as k\nk.create()", ["create→kvstore.create"]),
        ("import d2lps.kvstore\nd2lps.kvstore.create()", ["create→kvstore.create"]),
        ("from d2lps import cost, ring as r\nr(cost.shared)", [
            "cost→cost", "ring→ring", "r→ring", "shared→cost.shared"]),
        ("from d2lps.train import by_store", ["by_store→train.by_store"]),
        ("from d2lps import (\n    ring,  # đi vòng\n)\n'vòng', ring", ["ring→ring", "ring→ring"]),
        ("import d2lps\nif d2lps.run:\n    x = [d2lps.ring for y in x]\nclass A(d2lps.Plan): pass", [
            "run→run", "ring→ring", "Plan→Plan"]),
        ("import d2lps\n@d2lps.run\ndef f(plan: d2lps.Plan = d2lps.ring): return d2lps.cost", [
            "run→run", "ring→ring", "Plan→Plan", "cost→cost"]),
    ],
)  # fmt: skip
def test_what_is_imported_is_linked(source, found):
    assert sorted(links(source)) == sorted(found)


@pytest.mark.parametrize(
    "source",
    [
        "ring(gpus)",
        "ring = 1\nring",
        "import other as d2lps\nd2lps.ring",
        "from other import ring\nring",
        "import d2lps\nd2lps.unknown",
        "import d2lps\nd2lps = 3\nd2lps.ring",
        "import d2lps\nfor d2lps in x: d2lps.ring",
        "import d2lps\nwith x as d2lps: d2lps.ring",
        "import d2lps\ndef f(d2lps): return d2lps.ring",
        "import d2lps\nf = lambda d2lps: d2lps.ring",
        "import d2lps\n[d2lps.ring for d2lps in x]",
        "import d2lps\ndef f():\n    d2lps.ring\n    d2lps = 3",
        "import d2lps\ndef d2lps(): pass\nd2lps.ring",
        "import d2lps\nclass d2lps: pass\nd2lps.ring",
        "import d2lps\ndel d2lps\nd2lps.ring",
        "import d2lps\n(d2lps := 3)\nd2lps.ring",
        "import d2lps\nx.d2lps.ring",
        "'import d2lps; d2lps.ring'",
        "import d2lps\ndef broken(:\nd2lps.ring",
    ],
)
def test_what_is_something_else_is_not(source):
    assert links(source) == []


def test_a_method_is_no_name_of_the_cell():
    assert links("from d2lps import run\nclass A:\n    def run(self): run()\nrun()") == ["run→run"] * 3


def test_imports_of_earlier_cells_are_known_until_a_cell_rebinds_them():
    assert links("ring(gpus)", "from d2lps import ring") == ["ring→ring"]
    assert links("ring(gpus)", "from d2lps import ring", "def ring(nodes): return []") == []
    assert links("ring(gpus)", "def ring(nodes): return []", "from d2lps import ring") == ["ring→ring"]
    assert links("ring(gpus)", "from d2lps import ring", "ring = !ls") == []


def test_magics_are_no_code():
    assert links("%%px\nimport d2lps\n%time x\n!ls\nd2lps.ring") == ["ring→ring"]
    assert '<span class="c1">%%px</span>' in linked("%%px\nx", {})
    assert links("x = (7\n  % 4)\nimport d2lps\nd2lps.ring") == ["ring→ring"]


def test_ranks_have_names_of_their_own():
    assert links("%%px\nring", "from d2lps import ring") == []
    assert links("%%px\nring", "%%px\nfrom d2lps import ring") == ["ring→ring"]
    assert links("ring", "%%px\nfrom d2lps import ring") == []


def test_marks_in_the_code_are_text():
    assert linked('a < b & "<i>"', {}) == ('a &lt; b &amp; <span class="s2">"&lt;i&gt;"</span>')
