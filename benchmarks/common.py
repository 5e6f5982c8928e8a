"""Common parts of benchmarks: ranks, times of two ways in turns, figures, and the load of this machine meanwhile."""

import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch
import torch.distributed as dist

from d2lps import this_host

HERE = Path(__file__).parent
ROOT = HERE.parent
WARM = 5  # turns that are not counted


@dataclass
class Run:
    """The options of the command, and the figures of one file of benchmarks.

    ``quick``: small sizes, to see that it works; ``pairs``: of each comparison; ``untuned``: MXNet with its defaults.
    """

    quick: bool = False
    pairs: int | None = None
    untuned: bool = False
    figures: list[dict] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)  # what is measured besides torch

    def note(self, what: str, **figures: object) -> None:
        """Add figures to those that are saved."""
        self.figures.append({"what": what, **figures})

    def compare(self, name: str, what: str, ratios: list[float], times: dict, aim: str, **more: object) -> None:
        """Print and note a row: ``ratios`` of pairs, and the medians of ``times``, seconds by name."""
        middle, low, high = spread(ratios)
        medians = {which: 1e3 * statistics.median(some) for which, some in times.items()}
        beside = "   ".join(f"{which} {value:8.2f} ms" for which, value in medians.items())
        print(f"{name:6} {what:34} {middle:6.2f}  [{low:.2f}, {high:.2f}]   {beside}   aim {aim}")
        milliseconds = {f"{which}_ms": value for which, value in medians.items()}
        self.note(f"{name} {what}", ratio=middle, p10=low, p90=high, aim=aim, **milliseconds, **more)

    def save(self, file: str) -> None:
        """Write the figures of a file to measured/, with the machine, the command and what they were measured with."""
        ask = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(ask, capture_output=True, text=True, cwd=HERE).stdout
        data = {
            "date": date.today().isoformat(),
            "device": f"{this_host().name}, {os.cpu_count()} processors",
            "system": platform.platform(),
            "torch": torch.__version__,
            **self.versions,
            "commit": commit.strip(),
            "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
            "figures": self.figures,
        }
        path = HERE / "measured" / f"{file}-{date.today().isoformat()}-{os.cpu_count()}-processors.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")


def spread(values: list[float]) -> tuple[float, float, float]:
    """Return the median, p10 and p90."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)]


def divided(ones: list[float], others: list[float]) -> list[float]:
    """Return the ratios of pairs."""
    return [one / other for one, other in zip(ones, others, strict=True)]


def processor_time() -> tuple[float, float]:
    """Processor time of this machine so far: (used, all)."""
    if not Path("/proc/stat").exists():
        return 0.0, time.monotonic()
    counts = [int(count) for count in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(counts) - counts[3] - counts[4], sum(counts)


def busy(since: tuple[float, float]) -> float:
    """Return the part of the processors' time that was used since then."""
    used, whole = (after - before for after, before in zip(processor_time(), since, strict=True))
    return used / whole


# ---------------------------------------------------------------- on ranks


def on_ranks(n: int, program: Callable, *arguments: object) -> object:
    """Return the result of ``program(*arguments)`` on rank 0 of ``n`` processes of one thread."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(rank, n, store.port, found, program, arguments)) for rank in range(n)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(600)
        rank.kill()
    if found.empty():
        sys.exit(f"{program.__name__} on {n} ranks failed")
    return found.get()


def _rank(rank, n, port, found, program, arguments):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(n),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    result = program(*arguments)
    if rank == 0:
        found.put(result)
    time.sleep(1)  # no rank leaves while others still send to it
    os._exit(0)


def slowest(seconds: float) -> float:
    """Return the largest of all ranks' seconds."""
    took = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def timed(work: Callable[[], object]) -> float:
    """Return the slowest rank's seconds for a call that all begin at once."""
    dist.barrier()
    start = time.perf_counter()
    work()
    return slowest(time.perf_counter() - start)


def in_turns(
    one: Callable[[], object],
    other: Callable[[], object],
    pairs: int,
    warm: int = WARM,
    before: Callable[[int, int], object] = lambda turn, which: None,
    after: Callable[[int, int], object] = lambda turn, which: None,
) -> tuple[list[float], list[float]]:
    """Return the slowest rank's seconds for calls of two ways, in turns A B B A; the first ``warm`` are not counted.

    ``before`` and ``after`` are called around each with the turn, and with 0 or 1 for the way.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(warm + pairs):
        for which in (0, 1) if turn % 2 else (1, 0):
            before(turn, which)
            took = timed((one, other)[which])
            after(turn, which)
            if turn >= warm:
                times[which].append(took)
    return times


def ceilings(copies: tuple[int, ...]) -> list[float]:
    """Print the bytes per second that this memory moves with so many ranks copying at once, and return them."""
    rates = [on_ranks(n, _ceiling) for n in copies]
    for n, rate in zip(copies, rates, strict=True):
        print(f"       memory traffic of {n} copying at once: {rate / 1e9:.1f} GB/s")
    return rates


def _ceiling() -> float:
    dist.init_process_group("gloo")
    return copying(10_000_000)


def copying(count: int) -> float:
    """Return bytes per second that the memory moves, read and written, with all ranks copying at once."""
    source, target = torch.ones(count), torch.empty(count)
    times = [timed(lambda: target.copy_(source)) for _ in range(10)]
    return 2 * 4 * count * dist.get_world_size() / statistics.median(times[3:])
