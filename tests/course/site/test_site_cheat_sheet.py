"""The cheat sheet: every formula is what plans, schedules and runs give, and every page shows all of them."""

import math
import re
from itertools import pairwise, product
from pathlib import Path

import pytest
from helpers import browser as browsers
from helpers.axe import grave

from course.book.check import _texts
from course.book.findings import BookError
from course.book.glossary import Glossary
from course.book.library import Book
from course.book.reading import Passage, read
from course.site import cheat_sheet, outputs
from course.site.build import THEME
from course.site.cheat_sheet import FORMULAS, sheet, tex
from course.site.pages import Site
from d2lps import (
    aggregate_at,
    all_gather,
    all_to_all,
    bandwidth,
    broadcast,
    cost,
    gather,
    halving_doubling,
    hierarchical,
    nvswitch,
    rail_wise,
    rails,
    recursive_doubling,
    reduce,
    reduce_scatter,
    ring,
    scatter,
    sharded,
    tree,
)
from d2lps.messages import LANGUAGES
from d2lps.plan import Plan, Send
from d2lps.scaling.layout import Layout, states
from d2lps.schedule import gpipe, interleaved, one_f_one_b, pipeline, zero
from d2lps.simulate import asynchronous
from d2lps.topology import Topology

ROOT = Path(__file__).parents[3]
chromium, new_page = browsers.chromium, browsers.new_page
S = 96 * 10**6
KNOWN = {name: getattr(math, name) for name in ("ceil", "sqrt", "sin", "pi")} | {
    "lg": math.log2,
    "max": max,
    "min": min,
}


def value(name: str, **letters: float) -> float:
    return eval(FORMULAS[name], KNOWN | letters)


# ---------------------------------------------------------------- the program: name → (letters, result)


def all_reduces(name: str, plan, counts: tuple[int, ...]):
    for n, rate, latency in product(counts, (10**9, 25 * 10**9), (0.0, 1e-3)):
        gpus = [f"gpu{i}" for i in range(n)]
        # A message passes two links: to the switch, and from it.
        place = nvswitch(n, f"{rate} B/s", latency / 2, links=1)
        yield {"n": n, "S": S, "B": rate, "alpha": latency}, cost.shared(plan(gpus), place, S).duration


def messages():
    plan = Plan(["gpu0", "gpu1"], {"g": 1}, [[Send("gpu0", "gpu1", "g")]], wants={("gpu1", "g")})
    yield from all_reduces("message", lambda gpus: plan, (2,))


def servers():
    for m, k in product((1, 2, 4, 6), (1, 2, 3, 4, 8)):
        workers, extra = [f"w{i}" for i in range(m)], [f"server{i}" for i in range(k)]
        kinds = dict.fromkeys(workers + extra, "gpu") | {"switch": "switch"}
        place = Topology("hosts", kinds, [*both(workers + extra, "switch", 10**9)])
        yield {"m": m, "k": k, "S": S, "B": 10**9}, cost.shared(sharded(workers, extra), place, S).duration


def both(nodes: list[str], switch: str, rate: int):
    from d2lps.topology import Link

    for node in nodes:
        yield from (Link(node, switch, f"{rate} B/s"), Link(switch, node, f"{rate} B/s"))


def levels(plan, network: int = 1):
    """Rails of m machines with n GPUs, whose fast links do not hold up the network."""
    for m, n in product((2, 3, 4), (2, 4)):
        members = [[f"host{h}/gpu{g}" for g in range(n)] for h in range(m)]
        place = rails(m, n, nic="1 GB/s", inside="16 GB/s")
        letters = {"m": m, "n": n, "S": S, "B_1": 16e9, "B_2": 1e9}
        yield letters, cost.shared(plan(members), place, S).duration


def two_levels(members: list[list[str]]):
    leaders = [gpus[0] for gpus in members]
    return hierarchical(dict(zip(leaders, members, strict=True)), ring(leaders))


def factors(*plans):
    for n, plan in product((2, 4, 8), plans):
        gpus = [f"gpu{i}" for i in range(n)]
        trace = cost.shared(plan(gpus), nvswitch(n, "1 GB/s", links=1), S)
        yield {"n": n}, float(bandwidth(trace).factor)


def bubbles(table, stages=(1,)):
    for p, m, v in product((2, 4), (4, 8), stages):
        made = table(p, m, v) if v > 1 else table(p, m)
        yield {"p": p, "m": m, "v": v}, cost.shared(pipeline(made, saved=0)).bubble()


def most_saved(table):
    """The micro-batches that a device has seen forward and not yet backward, at most."""
    for p, m in product((2, 4), (2, 3, 8)):
        for i, row in table(p, m).items():
            kept = most = 0
            for kind, *_ in filter(None, row):
                kept += {"F": 1, "B": -1}[kind]
                most = max(most, kept)
            yield {"p": p, "m": m, "i": i}, most


def kept(stage: int):
    for n in (2, 8, 64):
        yield {"n": n}, sum(states(1, Layout(data=n, stage=stage)).values())


def sent(*stages: int):
    for stage, n, m in product(stages, (2, 4), (1, 3)):
        gpus = [f"gpu{i}" for i in range(n)]
        plan = zero(gpus, [120, 240], stage=stage, micro=m, keep=False)
        trace = cost.shared(plan, nvswitch(n, "1 GB/s", links=1))
        out = sum(event.nbytes for event in trace.events if event.kind == "send" and event.src == "gpu0")
        yield {"n": n, "m": m, "S": 4 * 360}, out


def staleness():
    for n in (4, 8):
        ages = asynchronous(n, 200 * n, lambda random, rank: 1 + random.random() / 10, seed=1).staleness[10 * n :]
        yield {"n": n}, sum(ages) / len(ages)


def cliffs():
    def fades(a: float, tau: int) -> bool:
        past = [1.0] * (tau + 1)
        for _ in range(40_000):
            past.append(past[-1] - a * past[-1 - tau])
        return max(map(abs, past[-100:])) < 1

    for tau in (0, 1, 4, 8):
        low, high = 0.0, 4.0
        for _ in range(18):
            middle = (low + high) / 2
            low, high = (middle, high) if fades(middle, tau) else (low, middle)
        yield {"tau": tau}, low


def lost(interval: float, delta: float, mean: float) -> float:
    """The expected time beyond the work, per second of work, if failures come at random and nothing takes time else."""
    return mean / interval * math.expm1((interval + delta) / mean) - 1


def intervals(least: bool = False):
    for delta, mean in ((1, 2000), (10, 10_000), (5, 3000)):
        low, high = delta / 10, 2 * mean
        while high - low > 1e-7 * low:
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, b) if lost(a, delta, mean) < lost(b, delta, mean) else (a, high)
        yield {"delta": delta, "M": mean}, lost(low, delta, mean) if least else low


ROWS = {
    "message": (messages, 1e-9),
    "star": (lambda: all_reduces("star", lambda gpus: aggregate_at(gpus, "gpu0"), (2, 3, 8)), 1e-9),
    "shards": (lambda: all_reduces("shards", sharded, (2, 3, 8)), 1e-9),
    "ring": (lambda: all_reduces("ring", ring, (2, 3, 8)), 1e-9),
    "tree": (lambda: all_reduces("tree", tree, (2, 3, 5, 8)), 1e-9),
    "recursive-doubling": (lambda: all_reduces("rd", recursive_doubling, (2, 4, 8)), 1e-9),
    "halving-doubling": (lambda: all_reduces("hd", halving_doubling, (2, 4, 8)), 1e-9),
    "servers": (servers, 1e-9),
    "two-levels": (lambda: levels(two_levels), 1e-9),
    "rail-wise": (lambda: levels(rail_wise), 1e-9),
    "factor-all-reduce": (lambda: factors(ring, tree), 1e-12),
    "factor-parts": (lambda: factors(all_gather, reduce_scatter, all_to_all, gather, scatter), 1e-12),
    "factor-root": (lambda: factors(broadcast, reduce), 1e-12),
    "bubble": (lambda: [*bubbles(gpipe), *bubbles(one_f_one_b)], 1e-9),
    "bubble-interleaved": (lambda: bubbles(interleaved, (2, 3)), 1e-9),
    "saved-gpipe": (lambda: most_saved(gpipe), 0),
    "saved-1f1b": (lambda: most_saved(one_f_one_b), 0),
    **{f"kept-{stage}": (lambda stage=stage: kept(stage), 1e-12) for stage in range(4)},
    "sent-0": (lambda: sent(0, 1), 1e-12),
    "sent-2": (lambda: sent(2), 1e-12),
    "sent-3": (lambda: sent(3), 1e-12),
    "staleness": (staleness, 0.02),
    "cliff": (cliffs, 0.01),
    "young": (lambda: intervals(), 0.03),
    "daly": (lambda: intervals(), 0.0005),
    "loss": (lambda: intervals(least=True), 0.05),
}


def test_every_formula_is_computed():
    assert set(ROWS) == set(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_what_the_program_gives(name):
    given, within = ROWS[name]
    cases = list(given())
    assert cases
    for letters, happened in cases:
        assert value(name, **letters) == pytest.approx(happened, rel=within, abs=0), letters


@pytest.mark.parametrize("name", FORMULAS)
def test_another_formula_would_be_found(name):
    """A factor of 1.1 is more than any of the tolerances."""
    given, within = ROWS[name]
    assert any(
        1.1 * value(name, **letters) != pytest.approx(happened, rel=within, abs=0) for letters, happened in given()
    )


# ---------------------------------------------------------------- how a formula is written


@pytest.mark.parametrize(
    "expression, written",
    [
        ("2*(n - 1)/n*S/B", r"2 \frac{n - 1}{n} \frac{S}{B}"),
        ("2*ceil(lg(n))*(alpha + S/B)", r"2 \lceil \log_2 n \rceil \left(\alpha + \frac{S}{B}\right)"),
        ("sqrt(2*delta*M)", r"\sqrt{2 \delta M}"),
        ("min(m, p - i)", r"\min\left(m, p - i\right)"),
        ("2*sin(pi/(4*tau + 2))", r"2 \sin\left(\frac{\pi}{4 \tau + 2}\right)"),
    ],
)
def test_tex(expression, written):
    assert tex(expression) == written


@pytest.mark.parametrize("expression", ["n**2", "n if n else 1", "-n", "a - (b + c)"])
def test_an_invalid_expression_is_refused(expression):
    with pytest.raises(BookError, match="cannot be shown"):
        tex(expression)


def test_letters_of_a_product_do_not_run_into_each_other():
    for expression in FORMULAS.values():
        assert not re.search(r"\\(?:alpha|delta|tau|pi|log)[A-Za-z]", tex(expression))


# ---------------------------------------------------------------- the page


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_shows_all_formulas_and_the_run(language):
    text = (ROOT / f"chapters/cheatsheet/{language}.md").read_text("utf-8")
    assert sorted(re.findall(r"\[\[formula:([\w-]+)\]\]", text)) == sorted(FORMULAS)
    page = sheet(language, Book(ROOT))
    assert "[[" not in page and "gpu0→gpu1 +g2   gpu1→gpu0 +g1" in page and "<svg" in page


def test_the_three_pages_say_the_same():
    """The same sources, code and formulas in the same tables; the words are each language's own."""
    texts = [(ROOT / f"chapters/cheatsheet/{language}.md").read_text("utf-8") for language in LANGUAGES]
    for pattern in (r"\[\[[^]]*\]\]", r"`[^`]*`", r"\]\([^)]*\)", r"^\|.*", r"^#+"):
        found = [re.findall(pattern, text, re.M) for text in texts]
        if pattern == r"^\|.*":
            found = [[line.count("|") for line in lines] for lines in found]
        assert all(one == other for one, other in pairwise(found)), pattern


def test_the_texts_pass_the_checks_of_prose():
    files = {language: f"chapters/cheatsheet/{language}.md" for language in LANGUAGES}
    texts = {language: (ROOT / file).read_text("utf-8") for language, file in files.items()}
    bare = {language: re.sub(r"\[\[formula:[^]]*\]\]", "$n$", text) for language, text in texts.items()}
    passage = Passage("section", "cheat sheet", files, {language: read(text) for language, text in bare.items()})
    book = Book(ROOT)
    assert [str(found) for found in _texts([passage], Glossary(book.terms)) if found.level == "fail"] == []


def test_a_formula_that_is_not_there_is_named(tmp_path):
    folder = tmp_path / "chapters" / cheat_sheet.FOLDER
    folder.mkdir(parents=True)
    with pytest.raises(BookError, match=r"en\.md is missing"):
        sheet("en", Book(tmp_path))
    (folder / "en.md").write_text("[[formula:rings]]", "utf-8")
    with pytest.raises(BookError, match="there is no formula 'rings'"):
        sheet("en", Book(tmp_path))


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def written(tmp_path):
    """Writes the cheat sheet or the glossary of a language as the site has it, and returns its address."""
    static = tmp_path / "_static"
    static.mkdir()
    (static / "shared.css").write_text(outputs.shared_looks(), "utf-8")
    for file in [*THEME.glob("*.css"), *THEME.glob("*.js"), THEME / "math.woff2"]:
        (static / file.name).write_bytes(file.read_bytes())

    def write(language: str, name: str) -> str:
        site = Site(Book(ROOT), {}, language, {}, [])
        page = getattr(site, name)()
        (tmp_path / language).mkdir(exist_ok=True)
        path = tmp_path / language / page.path
        path.write_text(site.framed(page, [page]), "utf-8")
        return path.as_uri()

    return write


@pytest.mark.parametrize("language", LANGUAGES)
def test_both_pages_of_words_fit_a_phone_and_the_sheet_two_pages_of_paper(language, written, new_page):
    for name in ("cheat_sheet", "terms"):
        page = new_page(viewport={"width": 420, "height": 900})
        page.goto(written(language, name))
        assert page.evaluate("document.documentElement.scrollWidth") == 420
        assert grave(page) == []
        if name == "cheat_sheet":
            paper = page.pdf(prefer_css_page_size=True)
            assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", paper)) <= 2
        else:
            other = page.locator("table.others")
            assert other.get_by_role("row").count() > 100 and other.get_by_role("rowheader").first.is_visible()
