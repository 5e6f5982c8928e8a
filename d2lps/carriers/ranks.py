"""What carriers of several processes have in common: who they are, what each plays, and that they mean the same run."""

import atexit
import hashlib
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from weakref import WeakSet

import torch.distributed as dist

from d2lps.carriers.background import Worker
from d2lps.carriers.execute import Carrier, Timed, Work
from d2lps.carriers.rendezvous import Meeting, NoRanks, ProcessesError, RankLost, wait
from d2lps.carriers.tensors import TensorError
from d2lps.plan.acts import sends
from d2lps.plan.plan import Plan


class Ranks(Carrier):
    """Several processes, each of which plays its nodes of a plan: see :class:`Processes` and :class:`SharedMemory`."""

    kind = "ranks"

    def __init__(
        self,
        playing: Sequence[str] | None = None,
        *,
        deadline: float = 30.0,
        store: dist.Store | None = None,
        rank: int | None = None,
        size: int | None = None,
    ):
        if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 < deadline < 1e6:
            raise ProcessesError(f"deadline = {deadline!r}: seconds, more than 0")
        named = isinstance(playing, Sequence) and not isinstance(playing, str)
        if playing is not None and not (named and all(isinstance(node, str) for node in playing)):
            raise ProcessesError(f"playing = {playing!r}: name the nodes that this process plays, such as ['gpu0']")
        holder = None
        if store is None:
            store, rank, size, holder = from_environment(deadline)
        if rank is None or size is None or not 0 <= rank < size:
            raise ProcessesError(f"rank {rank!r} of {size!r}: give rank and size with the store, 0 ≤ rank < size")
        self.rank, self.size, self.deadline = rank, size, deadline
        self.meeting = Meeting(store, self.kind, rank, size, deadline, holder)
        self.store = dist.PrefixStore(f"d2lps/{self.meeting.name}/group", store)
        self.members = self.meeting.join({"host": host(), "plays": None if playing is None else list(playing)})
        self._ahead = [0.0] * size if self.one_host else self._clocks()
        _open.add(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Names for the nodes of a plan, one per process: ``rank0``, ``rank1``, …"""
        return tuple(f"rank{rank}" for rank in range(self.size))

    @property
    def one_host(self) -> bool:
        """Whether all processes run on one machine."""
        return len({member["host"] for member in self.members}) == 1

    def playing(self, plan: Plan) -> tuple[str, ...]:
        """The nodes that this process plays: those it was made for, or the plan's node of the same number."""
        return tuple(node for node, rank in self.ranks(plan).items() if rank == self.rank)

    def ranks(self, plan: Plan) -> dict[str, int]:
        """Node → the rank that plays it."""
        played = [member["plays"] for member in self.members]
        if all(nodes is None for nodes in played):
            if len(plan.nodes) != self.size:
                raise ProcessesError(
                    f"the plan has {len(plan.nodes)} nodes, and there are {self.size} processes, each of which plays "
                    f"one: start {len(plan.nodes)} (torchrun --nproc-per-node={len(plan.nodes)} …), make the plan for "
                    f"carrier.names, or say who plays what with {type(self).__name__}([…])"
                )
            return {node: rank for rank, node in enumerate(plan.nodes)}
        found = {}
        for rank, nodes in enumerate(played):
            for node in nodes or ():
                if node in found:
                    raise ProcessesError(f"{node} is played by rank {found[node]} and by rank {rank}: one may play it")
                found[node] = rank
        for node in plan.nodes:
            if node not in found:
                raise ProcessesError(f"nobody plays {node}: say so in one process, {type(self).__name__}(['{node}'])")
        idle = set(range(self.size)) - {found[node] for node in plan.nodes}
        if idle:
            raise ProcessesError(f"rank {min(idle)} plays no node of this plan ({' '.join(plan.nodes)})")
        return {node: found[node] for node in plan.nodes}

    def refuse(self, error: Exception) -> None:
        if not isinstance(error, RankLost):
            self.meeting.refused(error)

    def agree(self, work: Work) -> None:
        """All must have the same plan, size, dtype and reduction."""
        like = work.like
        mine = {
            "plan": _digest(work.plan),
            "elements": like.numel(),
            "dtype": str(like.dtype),
            "reduction": work.reduction.name,
        }
        said = self.meeting.all("run", mine)
        for what in mine:
            other = next((rank for rank, one in enumerate(said) if one[what] != said[0][what]), None)
            if other is not None and what == "plan":
                raise TensorError(f"rank {other} has another plan than rank 0: make it in the same way on all ranks")
            if other is not None:
                raise TensorError(
                    f"{what} of rank {other}'s tensors: {said[other][what]}, of rank 0's: "
                    f"{said[0][what]}; all gradients and reductions are alike"
                )

    @contextmanager
    def telling(self, step: Callable[[], int | None] = lambda: None) -> Iterator[None]:
        """What ends this process's part inside, the others hear: an error of its own, or Ctrl-C."""
        self.meeting.usable()
        try:
            yield
        except KeyboardInterrupt:
            self.meeting.interrupted(step())
            raise
        except Exception as error:
            if not isinstance(error, RankLost):
                self.meeting.refused(error, step())
            raise

    def ready(self, work: Work) -> Callable[[], list[Timed]]:
        with self.telling():
            return self.prepared(work)

    def prepared(self, work: Work) -> Callable[[], list[Timed]]:
        """What does the work once: see :meth:`Carrier.ready`. What it raises, the others hear."""
        raise NotImplementedError

    def share(self, what: object) -> list:
        return self.meeting.all("share", what)

    def gathered(self, plan: Plan, timed: list[Timed]) -> list[Timed]:
        """Rank 0 gets everyone's times. A send began when its source says so, and ended when its target does."""
        mine = [[t.step, t.index, t.start + self.begun, t.end + self.begun] for t in timed]
        everyone = self.meeting.all("times", {"times": mine if self.rank else [], "begun": self.begun})
        if self.rank:
            return timed
        ranks, offsets = self.ranks(plan), self._ahead
        zero = min(said["begun"] - offset for said, offset in zip(everyone, offsets, strict=True))
        everyone[0]["times"] = mine
        times = {}
        for rank, said in enumerate(everyone):
            for step, index, start, end in said["times"]:
                times.setdefault((step, index), {})[rank] = (start - offsets[rank] - zero, end - offsets[rank] - zero)
        found, steps = [], [sends(step) for step in plan.steps]
        for (step, index), seen in sorted(times.items()):
            sent = steps[step - 1]
            src, dst = (sent[index].src, sent[index].dst) if index < len(sent) else (None, None)
            start = seen.get(ranks.get(src), next(iter(seen.values())))[0]
            end = seen.get(ranks.get(dst), next(iter(seen.values())))[1]
            found.append(Timed(step, index, max(start, 0.0), max(start, end, 0.0)))
        return found

    begun = 0.0  # on this process's clock, when the last run began

    def _clocks(self, rounds: int = 8) -> list[float]:
        """By how much each rank's clock is ahead of rank 0's, from the quickest of some round trips through the store.

        On one host there is nothing to ask: all read the machine's own clock.
        """
        found = [0.0] * self.size
        for rank in range(1, self.size):
            best = float("inf")
            for _ in range(rounds):
                sent = time.perf_counter()
                self.meeting.all("there", None)
                theirs = self.meeting.all("back", time.perf_counter())[rank]
                took = time.perf_counter() - sent
                if took < best:
                    best, found[rank] = took, theirs - (sent + took / 2)
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        """Give back what this process holds for the others: connections, memory. All ranks do it."""
        self.meeting.close()


def from_environment(deadline: float) -> tuple[dist.Store, int, int, int | None]:
    """(store, rank, size, the rank that holds the store), as torchrun and ``d2lps.ranks`` set them in the environment.

    Raises NoRanks where nothing is set.
    """
    names = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    try:
        rank, size, address, port = (os.environ[name] for name in names)
        rank, size, port = int(rank), int(size), int(port)
    except (KeyError, ValueError) as error:
        raise NoRanks(
            f"this process is not one of several ({error} in the environment): start them with "
            "torchrun --nproc-per-node=4 script.py or, in a notebook, with d2lps.ranks(4) and %%px"
        ) from None
    if address in ("127.0.0.1", "localhost", "::1"):
        # gloo asks the name server who this host is, unless it is told.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    holder = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
    return _joined(address, port, rank, size, holder, deadline), rank, size, holder


_stores: dict[tuple, tuple[dist.Store, int | None]] = {}  # all carriers of a process meet in one: it, and its holder


def _joined(address: str, port: int, rank: int, size: int, holder: int | None, deadline: float) -> dist.Store:
    known, _ = _stores.get((address, port, rank, size), (None, None))
    if known is not None:
        asked = Worker().do(lambda: known.check(["d2lps"]))
        if asked.wait(deadline) and asked.error is None:
            return known
    joining = partial(dist.TCPStore, address, port, size, rank == holder, wait(deadline), wait_for_workers=False)
    joined = Worker().do(joining)
    joined.wait()  # in this thread Ctrl-C would have to wait, too
    if joined.error is None:
        _stores[address, port, rank, size] = joined.result, holder
        return joined.result
    if "EADDRINUSE" in str(joined.error) or "in use" in str(joined.error):
        raise ProcessesError(
            f"port {port} on {address} is in use: set MASTER_PORT to a free one on all ranks, or "
            "let torchrun choose (--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0)"
        )
    raise ProcessesError(
        f"no store answers on {address}:{port} within {deadline:g} s: is MASTER_PORT the same on "
        "all ranks, and does rank 0 run?"
    )


_open: "WeakSet[Ranks]" = WeakSet()


@atexit.register
def _leave(patience: float = 5.0) -> None:
    """Close what is open: a thread still waiting in gloo could abort the interpreter. Who holds a store goes last."""
    for carrier in list(_open):
        carrier.close()
    for (*_, rank, size), (store, holder) in _stores.items():
        everyone, until = [f"d2lps/left/{other}" for other in range(size)], time.monotonic() + patience
        with suppress(RuntimeError):
            store.set(everyone[rank], "")
            while rank == holder and time.monotonic() < until and not store.check(everyone):
                time.sleep(0.02)


def host() -> str:
    """The same text for all processes of one running machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else f"{platform.node()} {socket.gethostname()}"


@lru_cache(maxsize=64)
def _digest(plan: Plan) -> str:
    return hashlib.sha256(plan.to_json().encode()).hexdigest()
