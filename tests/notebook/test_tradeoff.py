"""``tradeoff``: its numbers, its picture in each language, and its page without a kernel."""

import re

import pytest

from d2lps import speak, tradeoff
from d2lps.messages import LANGUAGES, text
from d2lps.scaling.job import Job

JOB = Job(72_000, 1e6, 18_315, 0.288, 2048)


def page(lab) -> str:
    return lab._repr_mimebundle_()["text/html"]


def rows(lab) -> list[list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", lab._content(lab._now())["report"])
    return [[cell.replace("\u00a0", "") for cell in re.findall(r">([^<]*)</t[dh]>", row)] for row in found]


def test_the_table_has_the_numbers_of_the_job():
    lab = tradeoff(JOB, 6.88, devices=(190,))
    _, chosen, best = rows(lab)
    assert chosen[1:3] == ["1000000", "144000"] and best[1] == f"{JOB.best_batch(190):.0f}"
    assert chosen[3] == f"{JOB.seconds(190, 1e6) / 3600:.4g} h"
    assert best[4] == f"${JOB.cost(190, 6.88):.0f}"


def test_sliders_change_the_numbers():
    lab = tradeoff(JOB, 6.88, devices=(1, 64, 1024), prices=(2.75,))
    before = rows(lab)
    lab.controls["price"].value = 2.75
    assert rows(lab)[1][:4] == before[1][:4] and rows(lab)[1][4] != before[1][4]
    lab.controls["devices"].value = 1024
    lab.controls["batch"].value = 4
    assert rows(lab)[1][1] == "4000000" and rows(lab)[1][3] == f"{JOB.seconds(1024, 4e6) / 3600:.4g} h"


def test_a_batch_is_never_smaller_than_the_devices_need():
    lab = tradeoff(JOB, 1, devices=(4096,))
    lab.controls["batch"].value = 1 / 16
    assert rows(lab)[1][1] == str(2048 * 4096)


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_speaks_each_language_also_without_a_kernel(language):
    speak(language)
    try:
        lab = tradeoff(JOB, 6.88, [(2, 2), (1.1, 11)], devices=(1, 190), prices=(2.75,))
        html = page(lab)
        for key in ("batch", "devices", "price", "curve", "measured", "chosen", "same-time"):
            assert text(f"tradeoff.{key}") in html
        assert html.count("data-shows") >= 10 and html.count("<circle") >= 4
    finally:
        speak("en")


def test_dots_are_only_explained_if_there_are_some():
    assert text("tradeoff.measured") not in page(tradeoff(JOB, 1, devices=(2,)))
