"""The API's pages have every public name once, said as its docstring says it, and all links in it lead somewhere."""

import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import browser as browsers
from helpers.small_book import small

import d2lps
from course.book.findings import BookError
from course.site import api, reference
from course.site.front import THEME
from course.site.pages import Site
from d2lps import algorithms, kvstore

chromium, new_page = browsers.chromium, browsers.new_page


@pytest.fixture(scope="module")
def entries() -> dict[str, reference.Entry]:
    return {each.id: each for each in reference.entries()}


@pytest.fixture(scope="module")
def everything(entries) -> list[reference.Entry]:
    """Entries and their members."""
    return [one for each in entries.values() for one in (each, *each.members)]


def prose(html: str) -> str:
    return " ".join("".join(ElementTree.fromstring(f"<div>{html}</div>").itertext()).split())


def test_every_name_of_d2lps_is_there_under_that_name(entries):
    assert set(d2lps.__all__) <= set(entries)
    assert {entries[name].qualname for name in d2lps.__all__} == {f"d2lps.{name}" for name in d2lps.__all__}


@pytest.mark.parametrize(
    "package",
    "algorithms cluster notebook.grading kvstore kvstore.replication kvstore.wire measure messages plan simulate "
    "topology train view".split(),
)
def test_so_is_what_a_package_hands_on(entries, package):
    known = reference.addresses(list(entries.values()))
    handed_on = import_module(f"d2lps.{package}").__all__
    assert [name for name in handed_on if f"d2lps.{package}.{name}" not in known] == []


def test_chapters_find_what_modules_without_a_list_make(entries):
    assert {"cost", "simulate.cost.shared", "train.by_store.work", "train.by_history.fit", "units.show_size"} <= set(
        entries
    )


def test_classes_that_public_functions_return_or_raise_are_listed(entries):
    assert {"kvstore.store.KVStore", "notebook.predict.Prediction", "trace.TraceError"} <= set(entries)
    assert 'href="#kvstore.store.KVStore"' in entries["kvstore.create"].html
    assert 'href="#kvstore.in_process.Cluster"' in entries["kvstore.cluster"].html
    assert "Cluster.start" in [one.id.split(".", 1)[1] for one in entries["cluster.Cluster"].members]


def test_an_object_stands_there_once_and_is_found_by_all_its_names(entries):
    known = reference.addresses(list(entries.values()), "api/")
    assert known["d2lps.ring"] == known["d2lps.algorithms.ring"] == "api/algorithms.html#ring"
    assert known["d2lps.Plan.to_json"] == known["d2lps.plan.Plan.to_json"] == "api/plan.html#Plan.to_json"
    assert entries["cost"].names == ("d2lps.cost", "d2lps.simulate.cost")
    assert "d2lps" not in known


def test_ids_are_unique_and_links_lead_to_them(everything):
    ids = [each.id for each in everything]
    assert len(ids) == len(set(ids)) > 400
    linked = {target for each in everything for target in re.findall('href="#(.*?)"', each.html)}
    assert len(linked) > 100 and linked <= set(ids)


def test_all_of_it_is_well_formed(everything):
    assert all(ElementTree.fromstring(f"<div>{each.signature}{each.html}</div>") is not None for each in everything)


def test_each_entry_begins_with_one_sentence(everything):
    said = [each for each in everything if each.kind != "constant"]
    assert [each.id for each in said if not each.summary or each.summary[-1] not in ".:"] == []
    assert [each.id for each in said if each.summary.rstrip(":.") not in each.text] == []


def test_kinds_groups_and_members(entries):
    kinds = {name: entries[name].kind for name in ("ring", "Plan", "PlanError", "kvstore", "topology.PCIE")}
    assert kinds == {
        "ring": "function",
        "Plan": "class",
        "PlanError": "exception",
        "kvstore": "module",
        "topology.PCIE": "constant",
    }
    groups = {name: entries[name].group for name in ("ring", "Plan", "topology.PCIE", "d2l", "d2lps", "check_exercise")}
    assert groups == {
        "ring": "algorithms",
        "Plan": "plan",
        "topology.PCIE": "topology",
        "d2l": "notebook",
        "d2lps": "d2lps",
        "check_exercise": "notebook",
    }
    plan = {each.id: each.kind for each in entries["Plan"].members}
    assert plan["Plan.to_json"] == "method" and plan["Plan.from_json"] == "class method"
    assert {each.id: each.kind for each in entries["Trace"].members}["Trace.duration"] == "property"
    channel = {each.id for each in entries["kvstore.Channel"].members}
    assert "kvstore.Channel.receive" in channel and "kvstore.Channel._fill" not in channel


def test_inherited_members_are_listed_only_with_their_base(entries):
    assert '<a href="#kvstore.KVError"><code>KVError</code></a>' in entries["kvstore.WorkerLost"].html
    counted = [each.id for each in entries.values() for one in each.members if one.id.endswith(".pushpull")]
    assert counted == ["kvstore.store.KVStore"]


def test_each_room_begins_with_its_purpose(entries):
    by_room = {}
    for each in entries.values():
        by_room.setdefault(each.group, []).append(each)
    assert list(by_room)[0] == "d2lps" and {"algorithms", "carriers", "kvstore", "view"} <= set(by_room)
    firsts = {room: each[0] for room, each in by_room.items()}
    assert {each.kind for each in firsts.values()} == {"module"}
    assert firsts["algorithms"].text.startswith("The algorithms: each a small function that returns a plan.")


def test_signatures_have_names_and_short_defaults(entries):
    def signature(name):
        return prose(entries[name].signature)

    assert signature("ring") == 'd2lps.ring(nodes, key="g")'
    assert signature("kvstore.create") == 'd2lps.kvstore.create(kind="local", engine="d2lps", **options)'
    assert signature("kvstore.Timeout") == "d2lps.kvstore.Timeout"
    assert signature("topology.PCIE") == 'd2lps.topology.PCIE = "16 GB/s"'
    members = {each.id: prose(each.signature) for each in entries["Plan"].members}
    assert members["Plan.from_json"].startswith("from_json(") and "self" not in members["Plan.to_json"]
    assert not any(" at 0x" in each.signature for each in entries.values())


def test_parameters_examples_and_roles_are_shown(entries):
    ring = entries["ring"].html
    assert '<dt><code>nodes</code> <span class="type">Iterable[str]</span></dt>' in ring
    assert '<span class="type"><a href="#Plan">Plan</a></span>' in ring
    assert (
        "<h3>Parameters</h3>" in ring
        and '<pre class="code" tabindex="0"><code>' in ring
        and '<span class="gp">&gt;&gt;&gt; </span>' in ring
    )
    assert '<a href="#ring"><code>ring</code></a>' in entries["bidirectional_ring"].html
    assert "<table>" in entries["nvswitch"].html
    assert "<h4>Returns</h4>" in {each.id: each.html for each in entries["Plan"].members}["Plan.to_json"]
    assert "<code>PUSH = 11</code>" in entries["kvstore.Op"].html


def line_of(module, text: str, after: str = "") -> str:
    path = Path(module.__file__)
    lines = path.read_text("utf-8").split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(after))
    at = next(i for i, line in enumerate(lines) if i >= start and text in line)
    return f"{path.relative_to(reference.HOME.parent).as_posix()}:{at + 1}"


@pytest.fixture(scope="module")
def pages(entries, tmp_path_factory) -> Path:
    """Return the folder with the pages of the package, as the site has them."""
    root = tmp_path_factory.mktemp("site")
    site = Site(small(tmp_path_factory.mktemp("book")), {}, "en", {}, list(entries.values()))
    for folder in ("api", "_static"):
        (root / folder).mkdir()
    for page in site.package():
        (root / "api" / page.path).write_text(site.framed(page, [], folder="../en/"), "utf-8")
    for name in ("book.css", "book.js", "api.js"):
        (root / "_static" / name).write_bytes((THEME / name).read_bytes())
    return root / "api"


def test_each_room_has_a_page_and_the_first_page_a_sentence_for_each_name(entries, pages):
    rooms = {f"{each.group}.html" for each in entries.values()}
    assert {path.name for path in pages.iterdir()} == {"index.html", *rooms}
    table = (pages / "index.html").read_text("utf-8")
    rows = re.findall(r'<tr id="(.*?)"><th scope="row"><a href="(.*?)">.*?</th><td>(.*?)</td></tr>', table)
    assert [id for id, *_ in rows] == list(entries)
    assert [address for _, address, _ in rows] == [f"{each.group}.html#{each.id}" for each in entries.values()]
    assert [id for id, _, said in rows if not said or said[-1] not in ".?" and entries[id].kind != "constant"] == []
    assert dict((id, said) for id, _, said in rows)["algorithms"].endswith("a small function that returns a plan.")


def test_every_link_between_the_rooms_leads_to_its_name(pages):
    ids = {path.name: set(re.findall(r' id="(.*?)"', path.read_text("utf-8"))) for path in pages.iterdir()}
    crossing = 0
    for path in pages.iterdir():
        main = path.read_text("utf-8").partition("<main")[2].partition("</main>")[0]
        for page, id in re.findall(r' href="([\w.]*)#(.*?)"', main):
            assert id in ids[page or path.name], f"{path.name}: {page}#{id}"
            crossing += bool(page) and path.name != "index.html"
    assert crossing > 50


def test_an_old_link_to_a_name_leads_to_its_room(new_page, pages):
    page = new_page()
    for old, new in {
        "Plan.to_json": "plan.html#Plan.to_json",
        "kvstore.create": "kvstore.html#kvstore.create",
        "ring": "algorithms.html#ring",
    }.items():
        page.goto(f"{(pages / 'index.html').as_uri()}#{old}")
        page.wait_for_url(f"**/api/{new}")
        assert page.evaluate("document.getElementById(decodeURIComponent(location.hash.slice(1))) !== null")
    page.goto(f"{(pages / 'index.html').as_uri()}#room-kvstore")
    assert page.url.endswith("index.html#room-kvstore")


def test_the_search_finds_each_name_in_its_room(entries, pages):
    found = api.indexed(list(entries.values()), "../api/", "Reference")
    assert {each.title: each.url for each in found}["d2lps.ring"] == "../api/algorithms.html#ring"
    assert len(found) == len(entries)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("Returns:", "Retruns:", "has the section 'Retruns'"),
        ("2(n−1)/n·S, which", "``2(n−1)/n·S, which", "cannot be read: Inline literal start-string without end-string"),
        ("2(n−1)/n·S, which", ":func:`rung`, which", "points at 'rung', which is nowhere"),
    ],
)
def test_a_broken_docstring_is_named_by_its_object(monkeypatch, old, new, said):
    ring = algorithms.ring
    assert old in ring.__doc__
    monkeypatch.setattr(ring, "__doc__", ring.__doc__.replace(old, new))
    with pytest.raises(BookError) as caught:
        reference.entries()
    where = line_of(import_module("d2lps.algorithms.rings"), "def ring(")
    assert str(caught.value).startswith(f"{where}: d2lps.ring {said}")
    assert str(caught.value).endswith("; mend it there")


def test_a_public_name_without_a_docstring_is_named(monkeypatch):
    monkeypatch.setattr(kvstore.Channel.receive, "__doc__", None)
    with pytest.raises(BookError) as caught:
        reference.entries()
    assert str(caught.value) == (
        f"{line_of(import_module('d2lps.kvstore.wire.channel'), 'def receive(', 'class Channel')}: "
        "d2lps.kvstore.Channel.receive has no docstring; mend it there"
    )


def test_a_method_without_words_of_its_own_has_those_of_the_other_package(entries):
    gpt = import_module("d2lps.train.gpt")
    assert "forward" not in vars(gpt.GPT)
    assert "forward" not in [each.qualname.split(".")[-1] for each in entries["train.gpt.GPT"].members]
