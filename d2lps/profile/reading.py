"""Profiles of torch.profiler (Kineto), read from Chrome traces of any size: JSON, plain or gzipped, a file per rank.

A file is decoded event by event, and of each event a few numbers stay: 500 MB become some tens of MB. Kept are what
devices do (kernels, copies, messages), the steps, and the time in which the program waits for data. Without a GPU, the
operators of PyTorch take the place of kernels, and gloo's threads that of the stream with messages.
"""

import gzip
import json
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from d2lps.messages import text, why
from d2lps.messages.raised import Brief

PIECE, MOST = 1 << 20, 1 << 26  # characters that are read at once, and of one event at most
MATRICES = re.compile(
    r"(?<!fb)gemm|gemv|nvjet|cutlass|xmma|wgmma|wgrad|dgrad|fprop|winograd|flash|fmha|attention|cijk_|splitk"
    r"|_mma_|[sh]\d*cudnn",
    re.IGNORECASE,
)
PRODUCTS = re.compile(
    r"aten::(mm|addmm|_addmm_activation|bmm|baddbmm|addbmm|mv|addmv|dot|convolution\w*|mkldnn_\w*(conv|linear)\w*"
    r"|_?scaled_(dot_product|grouped|mm)\w*|_(flash|efficient)_attention\w*|_(int|weight_int4pack)_mm)$"
)
CHAINED = ("autograd::", "c10d::", "_c10d_functional::", "torch::", "fsdp::")  # what only calls other operators
GPU = {"kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "kernel", "memset": "kernel"}
BY_CPU = re.compile(r"(?:gloo|mpi|ucc|xccl|nccl):(\w+)$")
STEP = re.compile(r"ProfilerStep#(\d+)$")
TYPES = {2: "half bfloat16 float16 short", 4: "float float32 int int32", 8: "double float64 long int64"}
WIDTHS = {name: width for width, names in TYPES.items() for name in names.split()}  # bytes; those of other types: 1


class ProfileError(Brief, ValueError):
    """A file that is no profile, or profiles that do not belong together."""


class Message(NamedTuple):
    """A rank's part in a collective, or a message from one rank to another.

    Args:
        start, end: Nanoseconds.
        lane: The number of its stream or thread.
        collective: Its kind, as ``all_reduce``; ``p2p`` for a message between two.
        group: The ranks that take part, if the profile names them.
        role: The name of the group, such as ``tp``; empty if it has none of its own.
        nbytes: Bytes of a rank's larger buffer; 0 if unknown.
        ends: Sender and receiver of a message between two, if known.
    """

    start: int
    end: int
    lane: int
    collective: str
    group: tuple[int, ...] = ()
    role: str = ""
    nbytes: int = 0
    ends: tuple[int, int] | tuple[()] = ()

    @property
    def name(self) -> str:
        """The kind and the group's name."""
        return f"{self.collective} {self.role}".strip()


class Slices:
    """Start, end (nanoseconds) and lane of many slices of one kind, as three columns, in order of their start."""

    def __init__(self) -> None:
        self.start, self.end, self.lane = array("q"), array("q"), array("H")

    def add(self, start: int, end: int, lane: int) -> None:
        """Append a slice."""
        self.start.append(start)
        self.end.append(end)
        self.lane.append(lane)

    def within(self, start: int, end: int, lane: int | None = None) -> list[tuple[int, int]]:
        """Return the slices, cut to an interval; those of one lane, if it is given."""
        return sorted(
            (max(a, start), min(b, end))
            for a, b, home in zip(self.start, self.end, self.lane, strict=True)
            if a < end and b > start and lane in (None, home)
        )


@dataclass
class Profile:
    """What one rank did.

    Args:
        rank, file, host: Who, where this was read, and on which host it was written, if that is known.
        world: The number of ranks; 0 if unknown.
        base: The nanosecond of the epoch from which the file counts.
        gpu: Whether kernels of a GPU were recorded.
        steps: Number of a step → its start and end, in nanoseconds.
        lanes: Names of streams or threads.
        matrices, others, copies, loading: Products of matrices, other kernels or operators, copies between devices, and
            waiting for data.
        messages: In order of their start.
    """

    rank: int
    file: str
    host: str = ""
    world: int = 0
    base: int = 0
    gpu: bool = False
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    lanes: list[str] = field(default_factory=list)
    matrices: Slices = field(default_factory=Slices)
    others: Slices = field(default_factory=Slices)
    copies: Slices = field(default_factory=Slices)
    loading: Slices = field(default_factory=Slices)
    messages: list[Message] = field(default_factory=list)


def read(files: Iterable[str | Path]) -> list[Profile]:
    """Return the profiles of several ranks.

    Args:
        files: Chrome traces of one run, a file per rank, as ``export_chrome_trace`` writes them, also gzipped.

    Returns:
        In order of the ranks.

    Raises:
        ProfileError: For a file that cannot be read or is no profile, and for two files of one rank.
    """
    profiles = [_read(Path(file), number) for number, file in enumerate(files)]
    if not profiles:
        raise ProfileError(text("profile.no-files"))
    profiles.sort(key=lambda profile: profile.rank)
    for one, other in zip(profiles, profiles[1:], strict=False):
        if one.rank == other.rank:
            raise ProfileError(text("profile.one-rank", rank=one.rank, files=f"{one.file}, {other.file}"))
    return profiles


def events(stream: IO[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a Chrome trace, piece by piece: each of its events has the key ``traceEvents``.

    Raises:
        ValueError, EOFError: If this is no JSON, or not to its end.
    """
    text_of = _Text(stream)
    if text_of.next() == "[":
        yield from (("traceEvents", event) for event in text_of.items("]"))
        return
    text_of.want("{")
    while text_of.next() != "}":
        key = text_of.value()
        text_of.want(":")
        if key == "traceEvents" and text_of.next() == "[":
            yield from ((key, event) for event in text_of.items("]"))
        else:
            yield key, text_of.value()
        if text_of.next() != "}":
            text_of.want(",")


class _Text:
    """JSON text that is decoded value by value, while it is read."""

    decode = json.JSONDecoder(strict=False).raw_decode

    def __init__(self, stream: IO[str]):
        self.stream, self.text, self.at = stream, "", 0

    def more(self) -> None:
        """Read a further piece, and forget what was decoded."""
        piece = self.stream.read(PIECE)
        if not piece:
            raise EOFError
        self.text, self.at = self.text[self.at :] + piece, 0

    def next(self) -> str:
        """Return the next character that is no space."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in " \t\r\n\ufeff":
                    return self.text[self.at]
                self.at += 1
            self.more()

    def want(self, character: str) -> None:
        """Pass over a character."""
        if self.next() != character:
            raise ValueError(f"{self.next()!r}, not {character!r}")
        self.at += 1

    def value(self) -> Any:
        """Return the next value."""
        self.next()
        while True:
            try:
                value, end = self.decode(self.text, self.at)
                if end < len(self.text):  # otherwise a number may go on
                    self.at = end
                    return value
            except json.JSONDecodeError:
                if len(self.text) - self.at > MOST:
                    raise
            self.more()

    def items(self, last: str) -> Iterator[Any]:
        """Yield the values of a list."""
        self.at += 1
        while self.next() != last:
            yield self.value()
            if self.next() != last:
                self.want(",")
        self.at += 1


def _read(file: Path, number: int) -> Profile:
    found = _Found(Profile(_rank_in(file.name, number), file.name))
    try:
        with file.open("rb") as raw:
            unzip = gzip.open if raw.read(2) == b"\x1f\x8b" else open
        with unzip(file, "rt", encoding="utf-8", errors="replace") as stream:
            for key, value in events(stream):
                found.take(key, value)
    except (OSError, EOFError, ValueError, TypeError, KeyError, RecursionError, OverflowError, zlib.error) as error:
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            reason = why(error)
        else:
            reason = text("profile.cut") if isinstance(error, EOFError) else f"{type(error).__name__}: {error}"
        raise ProfileError(text("profile.unreadable", file=file.name, why=reason)) from None
    return found.profile_of()


def _rank_in(name: str, number: int) -> int:
    """Return the rank that a file's name has, or the file's place."""
    named = re.search(r"rank[-_.]?(\d+)", name, re.IGNORECASE)
    return int(named[1]) if named else number


class _Found:
    """What has been found in a file so far."""

    def __init__(self, profile: Profile):
        self.profile = profile
        self.rows: dict[tuple, int] = {}  # process and thread, or device and stream → the number of a lane
        self.by_cpu = Slices(), Slices()  # matrices, others
        self.sent: list[Message] = []  # by threads of the CPU
        self.steps: dict[bool, dict[int, tuple[int, int]]] = {False: {}, True: {}}  # seen by the GPU
        self.kernels: dict[str, str] = {}  # name → part

    def take(self, key: str, value: Any) -> None:
        """Note one event, or one entry of the header."""
        if key == "traceEvents":
            if isinstance(value, dict):
                self.event(value)
        elif key == "distributedInfo" and isinstance(value, dict):
            self.profile.rank = int(value.get("rank", self.profile.rank))
            self.profile.world = int(value.get("world_size", 0))
        elif key == "host_name":
            self.profile.host = str(value)
        elif key == "baseTimeNanoseconds":
            self.profile.base = int(value)

    def event(self, event: dict) -> None:
        """Note one event of the trace."""
        if event.get("ph") != "X":
            return
        kind, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        if kind not in GPU and kind not in ("cpu_op", "operator", "user_annotation", "gpu_user_annotation"):
            return
        start = round(float(event["ts"]) * 1000)
        end = start + round(float(event.get("dur") or 0) * 1000)
        if end < start:
            raise ValueError(f"{name!r}: dur = {event['dur']}")
        if step := STEP.match(name):
            seen = self.steps[kind == "gpu_user_annotation"]
            before = seen.get(int(step[1]), (start, end))
            seen[int(step[1])] = min(start, before[0]), max(end, before[1])
        elif kind in GPU:
            self.profile.gpu = True
            self.on_gpu(GPU[kind], name, start, end, event)
        elif kind != "gpu_user_annotation":
            self.on_cpu(kind, name, start, end, event)

    def lane(self, event: dict) -> int:
        """Return the number of the lane of an event."""
        return self.rows.setdefault((event.get("pid"), event.get("tid")), len(self.rows))

    def on_gpu(self, kind: str, name: str, start: int, end: int, event: dict) -> None:
        """Note a kernel or a copy."""
        part = self.kernels.get(name) or self.kernels.setdefault(name, _part(kind, name))
        lane = self.lane(event)
        if part == "message":
            self.profile.messages.append(_message(start, end, lane, name, event.get("args") or {}))
        else:
            getattr(self.profile, part).add(start, end, lane)

    def on_cpu(self, kind: str, name: str, start: int, end: int, event: dict) -> None:
        """Note an operator, a message of gloo, or that the program waits for data."""
        if name.startswith("enumerate(DataLoader)"):
            self.profile.loading.add(start, end, 0)
        elif sent := BY_CPU.match(name):
            self.sent.append(_message(start, end, self.lane(event), sent[1], event.get("args") or {}))
        elif kind in ("cpu_op", "operator") and "::" in name and not name.startswith(CHAINED):
            self.by_cpu[not PRODUCTS.match(name)].add(start, end, self.lane(event))

    def profile_of(self) -> Profile:
        """Return the profile; raise ProfileError if nothing was found."""
        profile = self.profile
        if not profile.gpu:
            (profile.matrices, profile.others), profile.messages = self.by_cpu, self.sent
        everything = (profile.matrices, profile.others, profile.copies)
        if not any(slices.start for slices in everything):
            raise ProfileError(text("profile.empty", file=profile.file))
        profile.lanes = [f"s{tid}" for _, tid in self.rows]
        if not profile.gpu:
            talks = {message.lane for message in self.sent}
            kinds = ["net" if lane in talks else "cpu" for lane in range(len(self.rows))]
            before = [kinds[:lane].count(kind) for lane, kind in enumerate(kinds)]
            profile.lanes = [kind + str(n + 1) * bool(n) for kind, n in zip(kinds, before, strict=True)]
        starts, ends = zip(*((min(s.start), max(s.end)) for s in everything if s.start), strict=True)
        profile.steps = _periods(self.steps[True] or self.steps[False]) or {0: (min(starts), max(ends))}
        profile.messages.sort()
        return profile


def _part(kind: str, name: str) -> str:
    """Return the part of a step that a kernel belongs to."""
    if "nccl" in name.lower():
        return "message"
    if kind == "copy":
        return "others" if "DtoD" in name else "copies"
    return "matrices" if MATRICES.search(name) else "others"


def _periods(steps: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return the steps without gaps: each ends when the next begins."""
    numbers = sorted(steps)
    ends = {n: steps[m][0] for n, m in zip(numbers, numbers[1:], strict=False) if m == n + 1}
    return {n: (steps[n][0], ends.get(n, steps[n][1])) for n in numbers if ends.get(n, steps[n][1]) > steps[n][0]}


KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
KINDS |= {"alltoall": "all_to_all", "sendrecv": "send_recv", "send": "p2p", "recv": "p2p", "broadcast": "broadcast"}
KINDS |= {"reduce": "reduce", "barrier": "barrier", "gather": "gather", "scatter": "scatter"}


def _kind(written: str) -> str:
    """Return the kind of collective that a name means: ``all_gather`` of ``_allgather_base``, ``nccl…_AllGather_…``."""
    word = re.sub(r"^nccl\w*?Kernel_", "", written.partition("(")[0], flags=re.IGNORECASE)
    word = word.partition("_RING")[0].partition("_TREE")[0].partition("_NVLS")[0].partition("_COLLNET")[0].lower()
    word = word.replace("_", "")
    return next((kind for begin, kind in KINDS.items() if word.startswith(begin)), word or written)


def _message(start: int, end: int, lane: int, name: str, args: dict) -> Message:
    kind = _kind(str(args.get("Collective name") or name))
    ranks = str(args.get("Process Group Ranks", ""))
    group = tuple(map(int, re.findall(r"\d+", ranks))) if "..." not in ranks else ()
    role = str(args.get("Process Group Description", ""))
    role = "" if role in ("default_pg", "undefined") else re.sub(r"^mesh_|_(process_)?group$", "", role.lower())
    width = WIDTHS.get(str(args.get("dtype", "")).lower(), 1)
    count = max(int(args.get(f"{way} msg nelems") or 0) for way in ("In", "Out"))
    ends = tuple(int(args[f"{end} Rank"]) for end in ("Src", "Dst") if str(args.get(f"{end} Rank", "")).isdecimal())
    return Message(start, end, lane, kind, group, role, width * count, ends if len(ends) == 2 else ())
