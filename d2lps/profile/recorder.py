"""Dumps of PyTorch's flight recorder: the collective at which the ranks of a job that hangs begin to differ.

A dump lists the last collectives of a rank, numbered by group. The first number tells who is wrong at which a rank
called another collective, or with another size, or none at all. Messages between two ranks are not compared.

Dumps are pickles or JSON. A pickle can run any program when it is read, so this one is read without functions and
classes: lists, dicts, tuples, texts and numbers are all that a dump consists of.
"""

import io
import json
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from d2lps.messages import text, why
from d2lps.messages.raised import Brief

RANK = re.compile(r"(\d+)(?:\.(?:json|pickle|pkl|pt))?$")
UNEVEN = ("all_to_all", "alltoall", "scatter", "coalesced")  # whose sizes may differ between ranks
ORDER = ("scheduled", "started", "completed")


class DumpError(Brief, ValueError):
    """A file that is no dump of the flight recorder, or a folder without any."""


class Entry(NamedTuple):
    """A collective that a rank called.

    Args:
        name: As ``all_reduce``.
        sizes: Of what the rank gave to it, each a tuple.
        types: Of the same, as ``Float``.
        state: ``scheduled``, ``started`` or ``completed``. gloo's stay scheduled.
        line: The line of the program that called it, ``train.py:12``; empty if it was not recorded.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    state: str = ""
    line: str = ""

    def __str__(self) -> str:
        sizes = ", ".join("×".join(map(str, size)) or "1" for size in self.sizes)
        kinds = " ".join(dict.fromkeys(self.types))
        given = f"({sizes} {kinds})".replace(" )", ")") if self.sizes else ""
        return f"{self.name}{given}" + f" {self.line}" * bool(self.line)


class Dump(NamedTuple):
    """What one rank recorded: for each group (name, members if known) number of a collective → its entries."""

    rank: int
    file: str
    groups: Mapping[tuple, Mapping[int, tuple[Entry, ...]]]


class Difference(NamedTuple):
    """The first number at which the ranks of a group differ.

    Args:
        kind: ``"missing"`` (ranks did not call it), ``"other"`` (another collective), ``"size"``, ``"start"`` (it never
            started there), ``"stuck"`` (it started on all, and did not end), ``"absent"`` (there is no dump of a
            member), or ``"line"``: the program called it from another line, before a difference that hangs.
        group: Its name.
        number: Of the collective, as the recorder counts in this group.
        ranks: Those that differ from the others; empty if it cannot be said who is wrong, as with two ranks.
        called: What was called → by which ranks; of the missing ones, what the others called.
    """

    kind: str
    group: str
    number: int
    ranks: tuple[int, ...]
    called: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        called = "; ".join(f"{_ranks(ranks)}: {what}" for what, ranks in self.called.items())
        values = {"ranks": _ranks(self.ranks), "number": self.number, "group": self.group, "called": called}
        if not self.ranks and self.kind in ("other", "size", "line"):
            return text("profile.hang.even", **values)
        return text(f"profile.hang.{self.kind}", **values)


def _ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 2`` or ``ranks 0–3, 7`` in the language in force."""
    ranks = sorted(ranks)
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    shown = (f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)
    return text("rank.one" if len(ranks) == 1 else "rank.many", ranks=", ".join(shown))


def read_dumps(places: Iterable[str | Path]) -> list[Dump]:
    """Return the dumps of several ranks.

    Args:
        places: Files, or folders of files; the name of each file ends with the rank, as ``nccl_trace_rank_3``.

    Returns:
        In order of the ranks.

    Raises:
        DumpError: For a file that is no dump, and if there are fewer than two.
    """
    files: list[Path] = []
    for place in map(Path, places):
        inside = [each for each in sorted(place.iterdir()) if RANK.search(each.name)] if place.is_dir() else [place]
        files += [file for file in inside if file.is_file() or not place.is_dir()]
    dumps = sorted((_read(file) for file in files), key=lambda dump: dump.rank)
    if len({dump.rank for dump in dumps}) != len(dumps) or len(dumps) < 2:
        raise DumpError(text("profile.few-dumps", files=" ".join(file.name for file in files) or "–"))
    return dumps


class _Plain(pickle.Unpickler):
    """Reads containers, texts and numbers."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name}")


def _read(file: Path) -> Dump:
    try:
        raw = file.read_bytes()
        data = _Plain(io.BytesIO(raw)).load() if raw[:1] == b"\x80" else json.loads(raw)
        named = RANK.search(file.name)
        return Dump(int(named[1] if named else data["rank"]), file.name, _groups(data))
    except OSError as error:
        raise DumpError(text("profile.no-dump", file=file.name, why=why(error))) from None
    except Exception as error:  # a broken pickle raises nearly anything
        reason = f"{type(error).__name__}: {error}"[:200]
        raise DumpError(text("profile.no-dump", file=file.name, why=reason)) from None


def _groups(data: dict) -> dict[tuple, dict[int, tuple[Entry, ...]]]:
    """Return the entries of a dump by group and number.

    Names of groups may be counted otherwise on each rank, so groups with known members go by these, in order.
    """
    members: dict[str, tuple[int, ...]] = {}
    for name, about in data.get("pg_config", {}).items():
        ranks = about["ranks"]
        found = re.findall(r"\d+", ranks) if isinstance(ranks, str) else ranks
        members[str(name)] = tuple(int(rank) for rank in found)
    entries: dict[tuple, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    keys: dict[tuple[str, str], tuple] = {}
    twins: Counter[tuple] = Counter()
    names = {tuple(map(_word, entry["process_group"])) for entry in data["entries"]}
    for name, about in sorted(names, key=lambda pair: (len(pair[0]), pair)):
        if ranks := members.get(name):
            twins[ranks, about] += 1
            keys[name, about] = about, ranks, twins[ranks, about]
        else:
            keys[name, about] = about, (), name
    for entry in data["entries"]:
        name, about = map(_word, entry["process_group"])
        if not entry.get("is_p2p"):
            entries[keys[name, about]][int(entry["collective_seq_id"])].append(_entry(entry))
    return {group: {number: (*found,) for number, found in log.items()} for group, log in entries.items()}


def _word(value: object) -> str:
    if not isinstance(value, str | int):
        raise TypeError(type(value).__name__)
    return str(value)[:200]


def _entry(entry: dict) -> Entry:
    name = _word(entry["profiling_name"]).rpartition(":")[2]
    sizes = tuple(tuple(int(n) for n in size) for size in entry.get("input_sizes") or ())
    types = tuple(_word(each) for each in entry.get("input_dtypes") or ())
    frames = [(_word(frame["filename"]), int(frame["line"])) for frame in entry.get("frames") or ()]
    own = [(file, line) for file, line in frames if "/torch/" not in file]
    line = f"{Path(own[0][0]).name}:{own[0][1]}" if own else ""
    return Entry(name, sizes, types, _word(entry.get("state", "")), line)


def compare(dumps: Sequence[Dump]) -> list[Difference]:
    """Return where the ranks of each group begin to differ.

    Args:
        dumps: As :func:`read_dumps` returns them.

    Returns:
        Differences that make a job hang; before one of these, possibly that of a line. Empty if all ranks are alike.
    """
    logs: dict[tuple, dict[int, Mapping[int, tuple[Entry, ...]]]] = defaultdict(dict)
    for dump in dumps:
        for group, log in dump.groups.items():
            logs[group][dump.rank] = log
    present = {dump.rank for dump in dumps}
    found = []
    for group, ranks in logs.items():
        about, members, which = group
        name = about if about not in ("", "undefined", "default_pg") else _ranks(members) if members else str(which)
        called = dict(ranks)
        for rank in present & {*members}:
            called.setdefault(rank, {})
        found += _first(name, called)
        if absent := {*members} - present:
            found.append(
                Difference("absent", name, max(max(log, default=0) for log in called.values()), (*absent,), {})
            )
    return sorted(found, key=lambda each: each.kind == "absent")


def _first(group: str, ranks: Mapping[int, Mapping[int, tuple[Entry, ...]]]) -> list[Difference]:
    """Return the first difference between the ranks of a group, after that of a line if there is one."""
    logs = {rank: log for rank, log in ranks.items() if log}
    if len(ranks) < 2 or not logs:
        return []
    before: list[Difference] = []
    begin, end = max(min(log) for log in logs.values()), max(max(log) for log in logs.values())
    for number in range(begin if len(logs) == len(ranks) else 1, end + 1):
        calls = {rank: log[number] for rank, log in ranks.items() if number in log}
        late = tuple(rank for rank, log in ranks.items() if number > max(log, default=0))
        if not calls:
            continue
        if late:
            return [*before, Difference("missing", group, number, late, _called(calls))]
        for kind, told in (("other", _names), ("size", _sizes)):
            if odd := _odd(calls, told):
                return [*before, Difference(kind, group, number, odd[0], _called(calls))]
        if not before and (odd := _odd(calls, _lines)):
            before = [Difference("line", group, number, odd[0], _called(calls))]
    states = {rank: min(ORDER.index(e.state) if e.state in ORDER else 2 for e in each) for rank, each in calls.items()}
    slow = tuple(rank for rank, state in states.items() if not state)
    if slow and len(slow) < len(states):
        return [*before, Difference("start", group, end, slow, _called(calls))]
    if {*states.values()} == {1}:
        return [*before, Difference("stuck", group, end, (*states,), _called(calls))]
    return []


def _names(entries: tuple[Entry, ...]) -> tuple:
    return tuple(entry.name for entry in entries)


def _sizes(entries: tuple[Entry, ...]) -> tuple:
    return tuple((e.sizes, e.types) for e in entries if not any(word in e.name for word in UNEVEN))


def _lines(entries: tuple[Entry, ...]) -> tuple:
    return tuple(entry.line for entry in entries)


def _odd(calls: Mapping[int, tuple[Entry, ...]], told) -> tuple[tuple[int, ...]] | None:
    """Return the ranks that differ from most others, within a tuple: none if there is no majority; None if alike."""
    counts = Counter(told(entries) for entries in calls.values()).most_common()
    if len(counts) < 2:
        return None
    clear = counts[0][1] > counts[1][1]
    return (tuple(rank for rank, entries in calls.items() if clear and told(entries) != counts[0][0]),)


def _called(calls: Mapping[int, tuple[Entry, ...]]) -> dict[str, tuple[int, ...]]:
    by: dict[str, list[int]] = defaultdict(list)
    for rank, entries in calls.items():
        by[", ".join(map(str, entries))].append(rank)
    return {what: (*ranks,) for what, ranks in by.items()}
