"""Dumps of several ranks: who differs, at which collective. A dump that would run a program is refused."""

import json
import os
import pickle
import re

import pytest

from d2lps.__main__ import main
from d2lps.messages import LANGUAGES, speak
from d2lps.profile import DumpError, compare, read_dumps


def entry(number, name="all_reduce", size=1000, state="completed", group="0", **more):
    return {
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "process_group": (group, "dp"),
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "state": state,
        "is_p2p": False,
    } | more


def frames(line):
    return [{"name": "all_reduce", "filename": "/lib/torch/distributed/c10d.py", "line": 9}] + [
        {"name": "main", "filename": "/job/train.py", "line": line}
    ]


def dumps(folder, logs, members="[0, 1, 2]", write=pickle.dumps):
    for rank, entries in logs.items():
        config = {"0": {"name": "0", "desc": "dp", "ranks": members}}
        content = {"version": "2.10", "pg_config": config, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(write(content))
    return compare(read_dumps([folder]))


def as_json(content):
    return json.dumps(content).encode()


ALL = [entry(1), entry(2), entry(3)]
CASES = {
    "missing": ({0: ALL, 1: ALL[:2], 2: ALL}, "missing", 3, (1,), "rank 1 did not call it. ranks 0, 2: all_reduce"),
    "none at all": ({0: ALL, 1: [], 2: ALL}, "missing", 1, (1,), "rank 1 did not call it"),
    "two missing": ({0: ALL, 1: ALL[:1], 2: ALL[:1]}, "missing", 2, (1, 2), "ranks 1, 2 did not"),
    "other": ({0: ALL, 1: ALL, 2: [ALL[0], entry(2, "broadcast")]}, "other", 2, (2,), "rank 2: broadcast(1000 Float)"),
    "size": ({0: ALL, 1: [ALL[0], entry(2, size=8), ALL[2]], 2: ALL}, "size", 2, (1,), "rank 1: all_reduce(8 Float)"),
    "never started": (
        {
            0: [*ALL, entry(4, state="started")],
            1: [*ALL, entry(4, state="scheduled")],
            2: [*ALL, entry(4, state="started")],
        },
        "start",
        4,
        (1,),
        "never started on rank 1",
    ),
    "stuck": ({rank: [*ALL, entry(4, state="started")] for rank in range(3)}, "stuck", 4, (0, 1, 2), "the network"),
    "old entries gone": ({0: ALL[1:], 1: ALL, 2: ALL[:2]}, "missing", 3, (2,), "rank 2 did not"),
}


@pytest.mark.parametrize("write", [pickle.dumps, as_json], ids=["pickle", "JSON"])
@pytest.mark.parametrize("name", CASES)
def test_first_difference_names_rank_and_collective(name, write, tmp_path):
    logs, kind, number, ranks, words = CASES[name]
    (found,) = dumps(tmp_path, logs, write=write)
    assert (found.kind, found.number, found.ranks) == (kind, number, ranks) and words in str(found)


@pytest.mark.parametrize(
    "logs",
    [
        {rank: ALL for rank in range(3)},
        {0: ALL, 1: ALL[1:], 2: ALL},  # the first entry has left the buffer
        {rank: [entry(1, "all_to_all", 10 * rank + 1)] for rank in range(3)},
        {rank: [*ALL, entry(4, state="scheduled")] for rank in range(3)},  # as gloo writes
        {rank: [*ALL, entry(4, "send", is_p2p=True)][: 4 - rank] for rank in range(2)} | {2: ALL},
    ],
)
def test_ranks_that_called_the_same_do_not_differ(logs, tmp_path):
    assert dumps(tmp_path, logs) == []


def test_two_ranks_that_differ_are_both_named(tmp_path):
    (found,) = dumps(tmp_path, {0: ALL, 1: [ALL[0], entry(2, "broadcast")]}, "[0, 1]")
    assert found.ranks == () and found.called == {"all_reduce(1000 Float)": (0,), "broadcast(1000 Float)": (1,)}
    assert "cannot be said which are wrong" in str(found)


def test_a_member_without_a_dump_is_named(tmp_path):
    missing, absent = dumps(tmp_path, {0: ALL, 1: ALL[:2]}, "[0, 1, 2]")
    assert (missing.kind, missing.ranks, absent.kind, absent.ranks) == ("missing", (1,), "absent", (2,))


def test_another_line_before_the_difference_is_named_first(tmp_path):
    """Rank 1 leaves out the second of three; all have one size, so only the lines of the program show it."""
    whole = [entry(number, frames=frames(10 * number)) for number in (1, 2, 3)]
    left_out = [entry(1, frames=frames(10)), entry(2, frames=frames(30))]
    line, missing = dumps(tmp_path, {0: whole, 1: left_out, 2: whole})
    assert (line.kind, line.number, line.ranks) == ("line", 2, (1,)) and "train.py:30" in str(line)
    assert (missing.kind, missing.number, missing.ranks) == ("missing", 3, (1,))


def test_groups_are_matched_by_their_members_where_names_differ(tmp_path):
    for rank, group in ((0, "3"), (1, "2")):
        config = {group: {"desc": "", "ranks": "[0, 1]"}}
        entries = [entry(number, process_group=(group, ""), size=number) for number in range(1, 4 - rank)]
        (tmp_path / f"rank{rank}").write_bytes(pickle.dumps({"pg_config": config, "entries": entries}))
    (found,) = compare(read_dumps([tmp_path]))
    assert (found.kind, found.number, found.ranks, found.group) == ("missing", 3, (1,), "ranks 0, 1")


class Program:
    """What runs a program when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("here-it-ran",)


def deep():
    found = []
    for _ in range(100):
        found = [found, found]  # 2 ** 100 lists if they were followed
    return found


DUMP = {"pg_config": {}, "entries": [entry(1)]}


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Program()),
        pickle.dumps(DUMP | {"entries": [Program()]}),
        b"cos\nsystem\n(S'mkdir here-it-ran'\ntR.",
        pickle.dumps(DUMP)[:-20],
        pickle.dumps([1, 2]),
        pickle.dumps(DUMP | {"entries": [entry(1, input_sizes=deep())]}),
        pickle.dumps(DUMP | {"entries": [entry(1, profiling_name=deep())]}),
        pickle.dumps(DUMP | {"pg_config": {"0": {"ranks": deep()}}}),
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04)R.",
        b"{}",
        b'{"entries": [{}]}',
        b"all is well",
        b"",
    ],
)
def test_what_is_no_dump_is_refused_and_runs_nothing(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank_0").write_bytes(pickle.dumps(DUMP))
    (tmp_path / "rank_1").write_bytes(content)
    with pytest.raises(DumpError, match="^rank_1 is no dump"):
        read_dumps([tmp_path / "rank_0", tmp_path / "rank_1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank_0", "rank_1"]


def test_fewer_than_two_dumps_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DumpError, match="two ranks or more"):
        read_dumps([tmp_path])
    (tmp_path / "rank_0").write_bytes(pickle.dumps(DUMP))
    with pytest.raises(DumpError, match=re.escape("(found: rank_0)")):
        read_dumps([tmp_path])
    with pytest.raises(DumpError, match="nowhere is no dump .*No such file"):
        read_dumps([tmp_path / "nowhere"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_command_prints_what_differs(language, tmp_path, capsys):
    dumps(tmp_path, CASES["missing"][0])
    assert main(["hang", str(tmp_path), "--language", language]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert (
        "3" in first and ("1 号进程" if language == "zh" else "rank 1") in second and "all_reduce(1000 Float)" in second
    )
    speak("en")
    dumps(tmp_path, {rank: ALL for rank in range(3)})
    assert main(["hang", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "All ranks called the same 3 collectives (groups: 1).\n"
    assert main(["hang", str(tmp_path / "rank_7")]) == 1 and "rank_7 is no dump" in capsys.readouterr().err
