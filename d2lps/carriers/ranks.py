"""The common part of carriers of several processes: ranks, the nodes that each plays, and agreement on a run."""

import atexit
import hashlib
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from weakref import WeakSet

import torch
import torch.distributed as dist

from d2lps.carriers.background import BackgroundThread, keep_forever
from d2lps.carriers.base import Carrier, Executed, Program, Timed
from d2lps.carriers.rendezvous import (
    DEADLINE,
    GRACE,
    NoRanks,
    ProcessesError,
    RankLost,
    Rendezvous,
    require_seconds,
    wait,
)
from d2lps.carriers.tensors import TensorError
from d2lps.messages import text
from d2lps.plan.plan import Plan
from d2lps.schedule.acts import messages_of
from d2lps.topology.local import own_nodes


class Ranks(Carrier):
    """Several processes, each of which plays its nodes of a plan: see :class:`Processes` and :class:`SharedMemory`."""

    kind = backend = "ranks"
    device = torch.device("cpu")  # where the tensors of this rank lie

    def __init__(
        self,
        playing: Sequence[str] | None = None,
        *,
        deadline: float = DEADLINE,
        store: dist.Store | None = None,
        rank: int | None = None,
        size: int | None = None,
    ):
        deadline = require_seconds("deadline", deadline)
        named = isinstance(playing, Sequence) and not isinstance(playing, str)
        if playing is not None and not (named and all(isinstance(node, str) for node in playing)):
            raise ProcessesError(text("processes.playing", playing=repr(playing)))
        holder = None
        if store is None:
            store, rank, size, holder = from_environment(deadline)
        if rank is None or size is None or not 0 <= rank < size:
            raise ProcessesError(text("processes.rank-of", rank=repr(rank), size=repr(size)))
        self.rank, self.size, self.deadline = rank, size, deadline
        self._busy = threading.RLock()  # held by the thread that runs a plan
        self.rendezvous = Rendezvous(store, self.kind, rank, size, deadline, holder)
        self.store = dist.PrefixStore(f"d2lps/{self.rendezvous.name}/group", store)
        plays = None if playing is None else list(playing)
        self.members = self.rendezvous.join({"host": host(), "plays": plays, "own": [f"rank{rank}", *own_nodes()]})
        self._ahead = [0.0] * size if self.one_host else self._clocks()
        _carriers.add(self)
        self._open()

    def _open(self) -> None:
        """Open the resources of this kind of carrier, once all processes have joined."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the processes, which play the nodes of these names: ``rank0``, ``rank1``, …"""
        return tuple(f"rank{rank}" for rank in range(self.size))

    @property
    def one_host(self) -> bool:
        """True if all processes run on one machine."""
        return len({member["host"] for member in self.members}) == 1

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device]:
        return dict.fromkeys(nodes, self.device)

    def ranks(self, plan: Plan) -> dict[str, int]:
        # Each process plays the nodes it was made for, else those of its own names; position decides for foreign names.
        played = [member["plays"] for member in self.members]
        if all(nodes is None for nodes in played):
            own = {node for member in self.members for node in member["own"]}
            named = [node for node in plan.nodes if node in own]
            if len(plan.nodes) != self.size and {*named} <= {*self.names}:
                values = {"nodes": len(plan.nodes), "size": self.size, "kind": type(self).__name__}
                raise ProcessesError(text("processes.nodes", **values))
            if not named:
                return {node: rank for rank, node in enumerate(plan.nodes)}
            if len(named) < len(plan.nodes):
                foreign = next(node for node in plan.nodes if node not in own)
                values = {"named": named[0], "foreign": foreign, "kind": type(self).__name__}
                raise ProcessesError(text("processes.mixed", **values))
        rank_of: dict[str, int] = {}
        for rank, nodes in enumerate(played):
            for node in self.members[rank]["own"] if nodes is None else nodes:
                if node in rank_of:
                    raise ProcessesError(text("processes.played-twice", node=node, one=rank_of[node], other=rank))
                rank_of[node] = rank
        for node in plan.nodes:
            if node not in rank_of:
                raise ProcessesError(text("processes.nobody", node=node, kind=type(self).__name__))
        idle = set(range(self.size)) - {rank_of[node] for node in plan.nodes}
        if idle:
            raise ProcessesError(text("processes.idle", rank=min(idle), nodes=" ".join(plan.nodes)))
        return {node: rank_of[node] for node in plan.nodes}

    def describe(self, plan: Plan, tensors: Mapping[str, torch.Tensor]) -> str:
        ranks = self.ranks(plan)
        played: dict[str, list[str]] = {}  # the nodes whose names do not say which rank plays them
        for node, rank in ranks.items():
            if node not in self.members[rank]["own"]:
                played.setdefault(self.names[rank], []).append(node)
        who = ", ".join(f"{name} = {' '.join(nodes)}" for name, nodes in played.items())
        if len(played) == self.size > 3 and [*ranks.values()] == [*range(self.size)]:
            who = " = ".join(f"{names[0]} … {names[-1]}" for names in (self.names, plan.nodes))  # in the plan's order
        return f"{self.backend} ×{self.size}" + (f" ({who})" if who else "")

    @contextmanager
    def taken(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            # Waiting is no solution: on another process the other thread may come first, and sums would be mixed.
            error = ProcessesError(text("processes.other-thread"))
            self.rendezvous.refused(error)
            raise error
        try:
            yield
        finally:
            self._busy.release()

    def refuse(self, error: Exception) -> None:
        if not isinstance(error, RankLost):
            self.rendezvous.refused(error)

    def verify_same_run(self, program: Program) -> None:
        mine = {
            "plan": _digest(program.plan),
            "elements": program.like.numel(),
            "dtype": str(program.like.dtype),
            "reduction": program.reduction.name,
        }
        everyone = self.rendezvous.all_gather("run", mine)
        for item in mine:
            other = next((rank for rank, theirs in enumerate(everyone) if theirs[item] != everyone[0][item]), None)
            if other is not None and item == "plan":
                raise TensorError(text("processes.other-plan", rank=other))
            if other is not None:
                values = {"theirs": everyone[other][item], "first": everyone[0][item]}
                raise TensorError(text("processes.unlike", rank=other, what=text(f"processes.what.{item}"), **values))

    @contextmanager
    def telling(self, step: Callable[[], int | None] = lambda: None) -> Iterator[None]:
        """Tell the other processes if an error or Ctrl-C ends this process's work inside the ``with`` block.

        Args:
            step: returns the step of the plan that this process is in.
        """
        self.rendezvous.require_open()
        try:
            with self.taken():
                yield
        except KeyboardInterrupt:
            self.rendezvous.interrupted(step())
            raise
        except Exception as error:
            if not isinstance(error, RankLost):
                self.rendezvous.refused(error, step())
            raise

    def all_gather(self, value: object) -> list:
        return self.rendezvous.all_gather("share", value)

    def gather_times(self, plan: Plan, executed: Executed) -> list[Timed]:
        # Rank 0 gets the times of all. A send's start is taken from its source, its end from its target.
        everyone = self.rendezvous.all_gather("times", [executed.begun, executed.acts if self.rank else []])
        if self.rank:
            return super().gather_times(plan, executed)
        everyone[0] = executed
        zero = min(begun - ahead for (begun, _), ahead in zip(everyone, self._ahead, strict=True))
        spans: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
        for rank, (_, acts) in enumerate(everyone):
            offset = self._ahead[rank] + zero
            for step, index, start, end in acts:
                spans.setdefault((step, index), {})[rank] = start - offset, end - offset
        steps = [[send for act in step for send in messages_of(act)] for step in plan.steps]
        ranks, times = self.ranks(plan), []
        for (step, index), by_rank in sorted(spans.items()):
            sent = steps[step - 1]
            src, dst = sent[index][:2] if index < len(sent) else ("", "")
            anyone = next(iter(by_rank.values()))
            start, end = by_rank.get(ranks.get(src, -1), anyone)[0], by_rank.get(ranks.get(dst, -1), anyone)[1]
            times.append(Timed(step, index, max(start, 0.0), max(start, end, 0.0)))
        return times

    def _clocks(self, rounds: int = 8) -> list[float]:
        """Return how many seconds each rank's clock is ahead of rank 0's, from the quickest of some rounds.

        Only needed between hosts: on one host all processes read the same clock.
        """
        quickest, ahead = float("inf"), [0.0] * self.size
        for _ in range(rounds):
            sent = time.perf_counter()
            self.rendezvous.all_gather("there", None)
            theirs = self.rendezvous.all_gather("back", time.perf_counter())
            took = time.perf_counter() - sent
            if took < quickest:
                quickest, ahead = took, [clock - (sent + took / 2) for clock in theirs]
        return [offset - ahead[0] for offset in ahead]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        """Release the connections and memory that this process holds for the others. All ranks call it."""
        self.rendezvous.close()

    def disown(self) -> None:
        """Leave all connections to the parent process: called in a forked child."""
        self.rendezvous.disown()


def from_environment(deadline: float) -> tuple[dist.Store, int, int, int | None]:
    """Return (store, rank, size, rank that holds the store) from the variables of torchrun or ``d2lps.ranks``.

    Raise NoRanks if the variables are not set.
    """
    try:
        *numbers, address = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"))
        rank, size, port = map(int, numbers)
    except (KeyError, ValueError) as error:
        raise NoRanks(_alone(error)) from None
    if not 0 <= rank < size:
        raise ProcessesError(text("processes.rank-range", rank=rank, size=size))
    if not 0 < port < 1 << 16:
        raise ProcessesError(text("processes.port-range", port=port))
    if address in ("127.0.0.1", "localhost", "::1"):
        # Without this, gloo asks the name server for the address of this host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    holder = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
    return _joined(address, port, rank, size, holder, deadline), rank, size, holder


# Who starts tasks → its variables for the number of a task and of all; mpirun may run inside a task of Slurm.
LAUNCHERS = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPI": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
}


def _alone(why: Exception) -> str:
    """Return what to start, in a sentence: another program may have started several tasks."""
    for launcher, (task, tasks) in LAUNCHERS.items():
        if task in os.environ and os.environ.get(tasks, "1") != "1":
            number, count = os.environ[task], os.environ[tasks]
            return text("processes.task", task=number, tasks=count, launcher=launcher, why=why)
    return text("processes.alone", why=why)


_stores: dict[tuple, tuple[dist.Store, int | None]] = {}  # the store that all carriers of a process use, and its holder


def _joined(address: str, port: int, rank: int, size: int, holder: int | None, deadline: float) -> dist.Store:
    known, _ = _stores.get((address, port, rank, size), (None, None))
    if known is not None:
        answer = BackgroundThread().do(lambda: known.check(["d2lps"]))
        if answer.wait(deadline) and answer.error is None:
            return known
    _require_address(address, deadline)
    joining = partial(dist.TCPStore, address, port, size, rank == holder, wait(deadline), wait_for_workers=False)
    joined = BackgroundThread().do(joining)
    # Not in this thread, where it would delay Ctrl-C; and torch, whose pauses double, waits for twice the deadline.
    if not joined.wait(deadline + GRACE):
        atexit.register(joined.wait, 2 * deadline)  # else Python ends that thread inside torch and aborts the process
        os.register_at_fork(after_in_child=partial(atexit.unregister, joined.wait))
    elif joined.error is None:
        _stores[address, port, rank, size] = joined.result, holder
        return joined.result
    if "EADDRINUSE" in str(joined.error) or "in use" in str(joined.error):
        raise ProcessesError(
            f"port {port} on {address} is in use: set MASTER_PORT to a free one on all ranks, or "
            "let torchrun choose (--local-addr=127.0.0.1 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0)"
        )
    if "failed to bind" in str(joined.error):
        raise ProcessesError(text("processes.no-listen", port=port, why=str(joined.error).rpartition("message: ")[2]))
    raise ProcessesError(
        f"no store answers on {address}:{port} within {deadline:g} s: is MASTER_PORT the same on "
        "all ranks, and does rank 0 run?"
    )


def _require_address(name: str, deadline: float) -> None:
    """Raise ProcessesError if MASTER_ADDR has no address, in which case torch would go on trying until the deadline."""
    lookup = BackgroundThread().do(partial(socket.getaddrinfo, name, None))
    error = lookup.wait(deadline) and lookup.error
    if error and getattr(error, "errno", None) != socket.EAI_AGAIN:  # then the name server may answer later
        why = getattr(error, "strerror", None) or error
        raise ProcessesError(text("processes.no-address", name=repr(name), why=why))


def own_address() -> str:
    """Return the address from which this host reaches MASTER_ADDR, of IPv4 if it can. Raise OSError."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    for family, _, _, _, address in sorted(socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)  # sends nothing
                return probe.getsockname()[0]
            except OSError as error:
                failure = error
    raise failure


_carriers: "WeakSet[Ranks]" = WeakSet()


@atexit.register
def _leave(patience: float = 5.0) -> None:
    """Close all carriers, since a thread still waiting in gloo could abort Python; the holder of a store exits last."""
    for carrier in list(_carriers):
        carrier.close()
    for (*_, rank, size), (store, holder) in _stores.items():
        everyone, until = [f"d2lps/left/{other}" for other in range(size)], time.monotonic() + patience
        with suppress(RuntimeError):
            store.set(everyone[rank], "")
            while rank == holder and time.monotonic() < until and not store.check(everyone):
                time.sleep(0.02)


def _disown() -> None:
    """Use and close nothing of the parent in a forked child."""
    for carrier in list(_carriers):
        carrier.disown()
    for store, _ in _stores.values():
        keep_forever(store)
    _carriers.clear()
    _stores.clear()


os.register_at_fork(after_in_child=_disown)


def host() -> str:
    """Return a text that is the same for all processes on one machine; a container counts as a machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return f"{platform.node()} {socket.gethostname()}"
    return " ".join([boot.read_text().strip(), *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt"))])


@lru_cache(maxsize=64)
def _digest(plan: Plan) -> str:
    return hashlib.sha256(plan.to_json().encode()).hexdigest()
