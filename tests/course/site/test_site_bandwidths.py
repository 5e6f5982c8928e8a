"""The page of bus bandwidths: nothing fitted, published rings met within 10 %, and a table for each topology."""

import base64
import json
import re
import zlib
from itertools import product
from statistics import mean

import pytest
from helpers import browser as browsers
from helpers.axe import CONTRAST, grave
from helpers.small_book import with_site
from helpers.small_site import bare

from course.book.__main__ import main
from course.book.library import Book
from course.site import bandwidths
from course.site.build import build
from course.site.pages import BANDWIDTHS
from course.site.runs import ChapterRun
from d2lps.messages import LANGUAGES, text_in

LOOKS = ("en", 1200, "light"), ("vi", 380, "dark"), ("zh", 380, "light")
chromium, new_page = browsers.chromium, browsers.new_page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of a small book with the whole page of bandwidths."""
    root, page = with_site(tmp_path_factory.mktemp("book")), bandwidths.page
    assert main(["--root", str(root), "build"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        bare(patch)
        patch.setattr(bandwidths, "page", page)
        run = ChapterRun({language: {} for language in LANGUAGES}, "2026-01-31", "2 × x86_64")
        return build(Book(root), run=lambda slug: run, pdf=False)


def test_published_rings_are_met():
    errors = [speeds["all-reduce"][-1] / host.ring.speed - 1 for host, speeds in bandwidths.predicted() if host.ring]
    assert len(errors) == 5
    assert max(map(abs, errors)) < 0.1 and mean(map(abs, errors)) < 0.05


def test_bus_bandwidth_of_sums_in_the_switch_exceeds_the_link():
    over = {host.name: speeds["all-reduce, NVLS"][-1] for host, speeds in bandwidths.predicted() if host.switch}
    assert len(over) == 2
    for host, speeds in bandwidths.predicted():
        if host.switch:
            assert speeds["all-reduce, NVLS"][-1] > host.switch.speed > speeds["all-reduce"][-1]


@pytest.mark.parametrize("language", ["en", "vi", "zh"])
def test_the_page_has_a_table_for_each_topology(language):
    page = bandwidths.page(language)
    assert page.count("<table><caption>") == len(bandwidths.hosts()) == 8
    assert len(re.findall(r'<a href="https://github.com/NVIDIA/', page)) == 7
    _, _, picture = page.partition('class="shown bandwidths"')
    assert picture.count("<tbody>") == 8 + 3  # 8 topologies, 3 with NVLS
    assert "{" not in picture and "nan" not in picture
    assert ("全归约，NVLS" in picture and "每台主机" in picture) == (language == "zh")


def test_a_reader_has_fields_whose_positions_are_what_the_links_allow():
    """In a ring of n GPUs each sends 2(n−1) chunks one after another, over two links."""
    page = bandwidths.fields()
    packed = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    positions = list(product(bandwidths.KINDS, bandwidths.COUNTS, bandwidths.SIZES))
    assert len(packed) == len(positions) and page.count('type="range"') == 3
    for (kind, gpus, size), content in zip(positions, packed, strict=True):
        report = json.loads(zlib.decompress(base64.b64decode(content)))["report"]
        assert ("NVLS" in report) == (kind != "A100" and gpus <= 8)
        if gpus <= 8:
            seconds = 2 * (gpus - 1) * (2 * 1.7e-6 + size / gpus / (1e9 * bandwidths.KINDS[kind][0]))
            shown = re.search(r">all-reduce<.*?</span>([\d.]+).GB/s.*?</span>([\d.\u00a0]+).ms", report)
            assert float(shown[1]) == pytest.approx(size / seconds / 1e9 * 2 * (gpus - 1) / gpus, rel=5e-3)
            assert float(shown[2].replace("\u00a0", "")) == pytest.approx(1e3 * seconds, rel=5e-3)
        else:
            assert "GB/s" in report and " ms" in report.replace("\u00a0", " ")


@pytest.mark.parametrize("language, width, scheme", LOOKS)
def test_the_page_of_bandwidths_can_be_read_in_each_width_and_theme(new_page, site, language, width, scheme):
    page = new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{site.as_uri()}/{language}/{BANDWIDTHS}")
    assert page.locator("h1").inner_text() == text_in(language, "site.bandwidths")
    assert page.locator("table").count() == 10  # eight topologies, the picture, and the reader's own GPUs
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert grave(page, rules=CONTRAST if scheme == "dark" else ()) == []
