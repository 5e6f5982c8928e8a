"""The command that divides recorded steps: predictions beside them, and what does not fit is refused."""

import pytest
from helpers.profiles import ADD, GEMM, kernel, reduce, step, write

from d2lps.__main__ import main
from d2lps.cluster.step import cause
from d2lps.scaling import GPUS, MODELS
from d2lps.scaling.layout import read as layout_of
from d2lps.scaling.speed import step as predict
from d2lps.units import show_seconds

LAYOUT = layout_of("t2.p2.c2.d2.none", 16, 8)


@pytest.mark.parametrize(
    "name, group, layout, what",
    [
        ("all_reduce tp", (4, 5), LAYOUT, "tensor"),
        ("all_gather", (4, 6), LAYOUT, "context"),
        ("p2p", (1, 5), LAYOUT, "pipeline"),
        ("all_reduce", (1, 5), LAYOUT, "pipeline"),  # as tied embeddings have it
        ("all_reduce", (3, 11), LAYOUT, "data"),
        ("all_reduce", (0, 3), LAYOUT, "all_reduce"),
        ("all_reduce", tuple(range(16)), LAYOUT, "all_reduce"),
        ("all_reduce", (), layout_of("d8.none", 8, 8), "data"),
        ("all_reduce", (), LAYOUT, "all_reduce"),
        ("all_to_all", (0, 1), layout_of("d8.e2.none", 8, 8), "experts"),
        ("all_reduce", (4, 5), None, "all_reduce"),
    ],
)
def test_a_group_tells_what_its_messages_are_for(name, group, layout, what):
    assert cause(name, group, layout) == what


@pytest.fixture
def traces(tmp_path):
    def events(late):
        return step(1, 0, 9e6), kernel(GEMM, 0, 6e6), kernel(ADD, 6e6, 7e6), reduce(late, 8.5e6, str([*range(8)]), "dp")

    return [str(write(tmp_path, rank, *events(7e6 + 5e5 * rank), world=8)) for rank in (0, 1)]


def test_predicted_parts_stand_beside_measured_ones(traces, capsys):
    layout = "d8.z3.full"
    arguments = ["--model", "llama3-8b", "--layout", layout, "--batch", "64", "--gpu", "h100"]
    assert main(["step", *traces, *arguments]) == 0
    line, head, *rows, said = capsys.readouterr().out.splitlines()
    parts = predict(MODELS["llama3-8b"], layout_of(layout, 8, 64), GPUS["h100"], precision="bf16")
    rows = {row.split("   ")[0]: [cell.strip() for cell in row.split("   ")[1:] if cell.strip()] for row in rows}
    assert head.split() == ["rank", "0", "1", "predicted"]
    assert rows["products of matrices"] == ["6 s", "6 s", show_seconds(parts["matrices"] + parts["attention"])]
    others = sum(parts[name] for name in ("reading", "starts", "update"))
    assert rows["other operations"] == ["1 s", "1 s", show_seconds(others)]
    assert not [row for row in rows if row.startswith(("attention", "starts"))]
    assert rows["data: all_reduce dp, exposed"][:2] == ["1 s", "1 s"]
    assert rows["the whole step"] == ["9 s", "9 s", show_seconds(sum(parts.values()))]
    assert rows["waiting for other ranks"][:2] == ["500 ms", "0 s"]
    assert said == "Most of the waiting is for rank 1: rank 0 waits 500 ms per step."


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--model", "llama3-8b"], "a prediction needs --layout"),
        (["--layout", "d8"], "a prediction needs --layout"),
        (["--layout", "d8", "--model", "llama9", "--batch", "64"], "there is no --model llama9"),
        (["--layout", "d9", "--model", "llama3-8b", "--batch", "64"], "d9 "),
        (["--layout", "d8", "--model", "llama3-8b", "--batch", "64", "--network", "400"], "Gbit/s"),
    ],
)
def test_a_prediction_that_cannot_be_made_is_refused(arguments, words, traces, capsys):
    assert main(["step", *traces, *arguments]) == 1
    assert words in capsys.readouterr().err


def test_a_file_that_is_no_profile_is_named(traces, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("all is well")
    assert main(["step", traces[0], str(tmp_path / "notes.txt"), "--language", "vi"]) == 1
    assert capsys.readouterr().err.startswith("notes.txt không phải Chrome trace")
    assert main(["step", traces[0], "--player", str(tmp_path / "no" / "step.html")]) == 1
    assert "step.html" in capsys.readouterr().err


def test_of_many_ranks_the_slowest_and_some_others_are_shown(tmp_path, capsys):
    def events(late):
        return step(1, 0, 100), kernel(GEMM, 0, late), reduce(late, 90, str([*range(20)]))

    files = [write(tmp_path, rank, *events(80 if rank == 13 else 10), world=20) for rank in range(20)]
    assert main(["step", *map(str, files)]) == 0
    _, head, *_, said = capsys.readouterr().out.splitlines()
    shown = [int(rank) for rank in head.split()[1:]]
    assert 13 in shown and len(shown) <= 8 and "for rank 13: rank 0 waits 70 µs, rank 1 " in said
