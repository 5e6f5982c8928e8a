"""A store on MXNet's ps-lite: each call is a request to a child process, and values lie in shared memory.

The scheduler and the servers of MXNet are child processes of the workers, too.
"""

import copy
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Collection
from contextlib import ExitStack, suppress
from itertools import accumulate
from mmap import mmap
from multiprocessing.connection import wait

import torch
from torch import Tensor

from d2lps.algorithms.placement import require_count
from d2lps.carriers.rendezvous import DEADLINE, Rendezvous, require_seconds
from d2lps.kvstore.child import ChildProcess, receive, send
from d2lps.kvstore.errors import KVError, Refused, ServerLost, Timeout, WorkerLost, as_known
from d2lps.kvstore.launch import Workers, meet, own_address, owners
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.values import KeySpec, Value, each_of, fill, validate_key
from d2lps.messages import text

KINDS = ("local", "device", "dist_sync", "dist_async")
ALIGNED = 64  # bytes
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8)
FLOATING = DTYPES[:3]  # a server of MXNet ends when it receives another dtype
STARTING = 60.0  # seconds for MXNet's processes to start, also if the deadline of a call is shorter
GRACE = 2.0  # seconds for an answer after another process has ended, which may have left last
AT_ONCE = 0.3  # seconds within which all processes of a lost worker end
INTERFACE = "DMLC_INTERFACE"  # MXNet's variable for the network card between hosts
LEAVING = 5.0  # seconds for a server to end by itself


# ---- the processes of MXNet


def require_mxnet() -> None:
    """Raise Refused if MXNet is not installed."""
    if sys.platform != "linux" or importlib.util.find_spec("mxnet") is None:
        raise Refused(text("store.mxnet.missing"))


def environment(
    role: str, number: int, root: tuple[str, int], workers: int, servers: int, own: str | None = None
) -> dict[str, str]:
    """Return the environment variables by which ps-lite's nodes find each other.

    ``role`` is scheduler, server or worker; ``root`` is the address of the scheduler; ``own`` is this host's address
    if there are several hosts.
    """
    # On one host each node has its own loopback address, so that no other machine can reach it: ps-lite unpickles what
    # it receives. ps-lite ranks its nodes by their addresses, as text, the largest first.
    last = f"{254 - number // 155}.{254 - number % 155}"
    loopback = {"scheduler": "127.0.0.1", "server": f"127.1.{last}", "worker": f"127.2.{last}"}[role]
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": root[0],
        "DMLC_PS_ROOT_PORT": str(root[1]),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_INTERFACE": os.environ[INTERFACE] if own else "lo",
        "DMLC_NODE_HOST": _ranked(own, number) if own else loopback,
    }


def _ranked(address: str, number: int) -> str:
    """Write an IPv4 address so that, as text, it is smaller for larger numbers.

    A number that begins with zeros is octal: 10.77.0.3 is also 012.77.0.3 and 0012.77.0.3.
    """
    first, _, rest = address.partition(".")
    return f"{'0' * (number + 1)}{int(first):o}.{rest}"


class Node(ChildProcess):
    """A process of MXNet with these ``settings`` in its environment; its stderr is kept."""

    def __init__(self, role: str, number: int, settings: dict[str, str]):
        self.role, self.number, self._stderr = role, number, os.memfd_create("d2lps")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("DMLC_") and key != "PORT"}
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        super().__init__("d2lps.kvstore.pslite", defaults | inherited | settings, self._stderr)

    def last_words(self) -> str:
        """Return the check that failed, or the last line of its stderr."""
        output = os.pread(self._stderr, 1 << 20, 0).decode(errors="replace")
        lines = [line.strip() for line in output.splitlines() if line.strip()] or [""]
        checks = [line[line.find("Check failed") :] for line in lines if "Check failed" in line]
        return (checks or lines[-1:])[0][:300]

    def end(self, until: float) -> None:
        """Wait for its end until then, on the monotonic clock; kill it after that."""
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.pipe.close()
        os.close(self._stderr)


class Nodes:
    """The processes that worker ``rank`` has started, of which the last makes its calls, and those that it watches.

    ``over`` is the error that has ended this store, if there is one.
    """

    def __init__(self, rank: int, deadline: float):
        self.rank, self.deadline = rank, deadline
        self.over: KVError | None = None
        self._gone: KVError | None = None  # had ended before it was watched
        self._started: list[Node] = []
        self._watched: dict[int, tuple[str, int]] = {}  # descriptor of a process → (role, number)

    def start(self, role: str, number: int, settings: dict[str, str]) -> None:
        """Start a scheduler, a server or a worker."""
        self._started.append(Node(role, number, settings))

    def pids(self) -> list[tuple[str, int, int]]:
        """Return [(role, number, process id)] of the processes started here, for the other workers to watch."""
        return [(node.role, node.number, node.process.pid) for node in self._started]

    def watch(self, pids: list) -> None:
        """Watch these processes, which are on this host."""
        for role, number, pid in pids:
            try:
                self._watched[os.pidfd_open(pid)] = role, number
            except ProcessLookupError:
                self._gone = self._loss(role, number)

    def join(self, kind: str, seconds: float) -> None:
        """Wait until all processes of MXNet are connected. Raises KVError."""
        self.watch(self.pids()[:-1])
        answer = self._answer("start", seconds, {"kind": kind})
        if "error" in answer:
            self.over = Refused(text("store.mxnet.broken", why=": ".join(answer["error"])))
        elif answer["result"] != self.rank:
            self.over = KVError(text("store.mxnet.rank", rank=self.rank, number=answer["result"]))
        if self.over:
            raise self.over

    def require_usable(self) -> None:
        """Raise the error that has ended this store, if there is one."""
        if not self._started:
            raise Refused(text("store.closed"))
        if self.over:
            error = copy.copy(self.over)  # with its ranks or servers
            error.args = (text("store.mxnet.ended", why=self.over),)
            raise error

    def ask(self, do: str, **request) -> None:
        """Let this worker's child do something, and wait for it. Raises KVError within the deadline."""
        self.require_usable()
        if error := self._answer(do, self.deadline, request).get("error"):
            raise Refused(text("store.mxnet.failed", why=next(iter(error[1].strip().splitlines()), error[0])))

    def interrupt(self) -> None:
        """End the store, because the thread that waits for an answer is interrupted."""
        self.over = self.over or KVError(text("store.mxnet.interrupted"))
        self._started[-1].process.kill()

    def _answer(self, do: str, seconds: float, request: dict) -> dict:
        child = self._started[-1]
        try:
            send(child.pipe, {"do": do} | request)
            self._wait(do, seconds)
            return receive(child.pipe)
        except (EOFError, ConnectionError):
            self.over = self.over or self._loss("worker", self.rank)
            raise self.over from None
        except BaseException as error:
            self.over = as_known(error)
            child.process.kill()
            raise

    def _wait(self, do: str, seconds: float) -> None:
        """Wait until the answer can be read. Raises Timeout, or the loss that prevents it."""
        pipe, watched = self._started[-1].pipe, dict(self._watched)
        gone, since = self._gone, time.monotonic()
        until = since + (min(seconds, GRACE) if gone else seconds)
        while (left := until - time.monotonic()) > 0:
            for ready in wait([pipe, *watched], left):
                if ready is pipe:
                    return
                now, loss = time.monotonic(), self._loss(*watched.pop(ready))
                if gone is None:
                    until, gone, since = min(until, now + GRACE), loss, now
                elif isinstance(loss, WorkerLost) and now - since < AT_ONCE:
                    gone = loss  # it takes the processes that it has started with it
        raise gone or Timeout(text("store.mxnet.late", task=do, seconds=f"{seconds:g}"))

    def _loss(self, role: str, number: int) -> KVError:
        """Return the error for the end of a process, with its last words if it was started here."""
        words = [node.last_words() for node in self._started if (node.role, node.number) == (role, number)]
        why = f" ({words[0]})" if words and words[0] else ""
        if role == "worker":
            return WorkerLost(text("store.mxnet.worker", number=number, why=why), (number,))
        if role == "scheduler":
            return ServerLost(text("store.mxnet.scheduler", why=why))
        return ServerLost(text("store.mxnet.server", number=number, why=why), (number,))

    def end(self, seconds: float = LEAVING) -> None:
        """End the processes started here: at once after an error, else those that have not ended after ``seconds``."""
        until = time.monotonic() + (0.0 if self.over else seconds)
        for node in reversed(self._started):
            node.end(until)
        for descriptor in self._watched:
            os.close(descriptor)
        self._started, self._watched = [], {}


# ---- the store


class PsLiteStore(KVStore):
    """A store of MXNet. :func:`launch` makes one.

    A call raises Timeout after the deadline, and ServerLost or WorkerLost if a process has ended; as MXNet cannot
    cancel a call, the store is then at its end. A push returns before it is counted, so its errors show at the next
    pull. A second push of a key waits until the first is counted.
    """

    def __init__(self, kind: str, rank: int, num_workers: int, nodes: Nodes, rendezvous: Rendezvous | None = None):
        super().__init__()
        self.type, self.rank, self.num_workers, self.deadline = kind, rank, num_workers, nodes.deadline
        self._nodes, self._rendezvous = nodes, rendezvous
        # The same number for a key on all workers: MXNet's numbers for strings depend on each worker's order.
        self._numbers: dict[KeySpec, int] = {}
        self._slots: dict[KeySpec, list[Tensor]] = {}  # the values that its child pushes and pulls
        self._busy: set[KeySpec] = set()  # pushed, and perhaps not read by MXNet yet
        self._calling = threading.RLock()
        self._end = weakref.finalize(self, _leave, os.getpid(), nodes, rendezvous)

    def close(self) -> None:
        """Leave together with all other workers: MXNet waits for them, and then its servers end."""
        self._end()
        self._slots.clear()
        super().close()

    def __exit__(self, error, *_) -> None:
        if error is not None:  # the other workers may not close, and MXNet would wait for them
            self._nodes.over = self._nodes.over or KVError(
                text("store.mxnet.left", rank=self.rank, error=error.__name__)
            )
        self.close()

    def save(self, *_, **__) -> None:
        """Raise Refused: MXNet cannot."""
        raise Refused(text("store.mxnet.no-save"))

    load = save

    def trace(self, key=None, rounds: int = 8):
        """Raise Refused: MXNet cannot."""
        raise Refused(text("store.mxnet.no-trace"))

    # ---- the calls of the store

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        self._nodes.require_usable()
        for spec, _ in fresh:
            require_value(spec, bool(self._rendezvous))
        self._require_alike([[validate_key(spec.key), str(spec.dtype), spec.elements] for spec, _ in fresh])
        with self._calling:
            for spec, _ in fresh:
                self._numbers[spec] = len(self._numbers)
            self._grow([spec for spec, _ in fresh])
            for spec, value in fresh:
                self._slots[spec][0].copy_(value.reshape(-1))
            self._ask("init", keys=[self._numbers[spec] for spec, _ in fresh])

    def _push(
        self, keys: list[KeySpec], values: list[Value], outs: list[Value] | None, retry: Collection[KeySpec]
    ) -> None:
        if self.type == "dist_async" and self.optimizer is None:
            raise Refused(text("store.mxnet.no-optimizer"))
        pushed = [(spec, each_of(value)) for spec, value in zip(keys, values, strict=True) if spec not in retry]
        with self._calling:
            self._nodes.require_usable()
            if busy := [self._numbers[spec] for spec in keys if spec in self._busy]:
                self._ask("settle", keys=busy)
            while short := [spec for spec, values in pushed if len(values) > len(self._slots[spec])]:
                self._grow(short)
            for spec, values in pushed:
                # MXNet needs a copy, too. With one value per key it has no buffer of its own: it sends from the pushed
                # array, and the next pull receives into that array, whatever its out=. A second push of an unchanged
                # array would push the sum: 3, then 6, then 12.
                for slot, value in zip(self._slots[spec], values):  # noqa: B905, there may be more slots
                    slot.copy_((value.to_dense() if value.is_sparse else value).reshape(-1))
            self._busy.update(keys)
            counts = [len(values) for _, values in pushed]
            self._ask("push", keys=[self._numbers[spec] for spec in keys], counts=counts)
        if outs is not None:
            self._pull_after_push(keys, outs)

    @torch.inference_mode()  # ``out`` may be an inference tensor
    def _pull(self, keys: list[KeySpec], outs: list[Value]) -> None:
        with self._calling:
            self._ask("pull", keys=[self._numbers[spec] for spec in keys])
            for spec, out in zip(keys, outs, strict=True):
                self._busy.discard(spec)  # MXNet executes the calls for a key in order
                fill(out, self._slots[spec][0])

    def _pull_rows(self, asked) -> None:
        raise Refused(text("store.mxnet.no-rows"))

    def _choose(self, optimizer: Optimizer, number: int) -> None:
        rule, numbers = mxnet_optimizer(optimizer, self.num_workers if self.type == "dist_sync" else 1)
        self._ask("optimizer", rule=rule, numbers=numbers)

    def _validate_steps(self, spec: KeySpec, optimizer: Optimizer) -> None:
        require_steps(spec, optimizer)

    def _meet(self, name: str, number: int, note: str | None = None) -> str:
        if self._rendezvous:
            self._ask("barrier")
        return note or "{}"  # MXNet carries no notes

    # ---- the other workers, and this worker's child

    def _require_alike(self, mine: list) -> None:
        """Raise Refused unless all workers init the same: a server of MXNet would end."""
        inits = self._rendezvous.all_gather("init", mine) if self._rendezvous else [mine]
        for rank, theirs in enumerate(inits):
            if theirs != inits[0]:
                raise Refused(text("store.mxnet.unlike", rank=rank, theirs=theirs, first=inits[0]))

    def _grow(self, keys: list[KeySpec]) -> None:
        """Add a slot for each key, in memory that is shared with the child."""
        sizes = (-(-spec.elements * spec.dtype.itemsize // ALIGNED) * ALIGNED for spec in keys)
        *starts, end = accumulate(sizes, initial=0)
        with open(os.memfd_create("d2lps"), "r+b") as file:
            file.truncate(end)
            memory = mmap(file.fileno(), end)
            slots = [
                [self._numbers[spec], name(spec.dtype), spec.elements, start]
                for spec, start in zip(keys, starts, strict=True)
            ]
            self._ask("grow", path=f"/proc/{os.getpid()}/fd/{file.fileno()}", places=slots)
        for spec, start in zip(keys, starts, strict=True):
            slot = torch.frombuffer(memory, dtype=spec.dtype, count=spec.elements, offset=start)
            self._slots.setdefault(spec, []).append(slot)

    def _ask(self, do: str, **request) -> None:
        with self._calling:
            self._calls.current.stop_by(self._nodes.interrupt)
            self._nodes.ask(do, **request)


def _leave(process: int, nodes: Nodes, rendezvous: Rendezvous | None) -> None:
    if os.getpid() != process:
        return  # in a forked child: the processes of MXNet are its parent's
    if not nodes.over:
        with suppress(KVError):  # this worker leaves, even if the others are lost
            nodes.ask("leave")
    nodes.end()
    if rendezvous:
        rendezvous.close()


def launch(kind: str, servers: int | None = None, *, deadline: float = DEADLINE, **more) -> PsLiteStore:
    """Make a store of MXNet: ``local``, ``device``, or for a worker that torchrun or ``d2lps.ranks`` has started.

    All workers call it with the same options, those of :func:`d2lps.kvstore.create`, on machines without
    untrusted users: MXNet has no secret, and its servers execute what they are sent. Servers listen on loopback on one
    host, and between hosts on the network card that ``DMLC_INTERFACE`` names.
    """
    if kind not in KINDS:
        raise Refused(text("store.mxnet.kind", kind=repr(kind), kinds=", ".join(KINDS)))
    dist = kind.startswith("dist")
    if more or servers is not None and not dist:
        raise Refused(text("store.no-option", kind=repr(kind), options=", ".join(more) or "servers"))
    deadline = require_seconds("deadline", deadline, Refused)
    require_mxnet()
    with ExitStack() as undo:
        rank, size, rendezvous = 0, 1, None
        if dist:
            options = {"kind": kind, "servers": servers, "deadline": deadline}
            workers = meet("pslite", options, max(deadline, STARTING))
            rank, size, rendezvous = workers.rank, workers.size, workers.rendezvous
            undo.callback(rendezvous.close)
        nodes = Nodes(rank, deadline)
        undo.callback(nodes.end, 0.0)
        if dist:
            _start(nodes, workers, require_count("servers", size if servers is None else servers, error=Refused))
            workers.all_or_none("connected", lambda: nodes.join(kind, workers.left))
            rendezvous.deadline = deadline
        else:
            nodes.start("worker", 0, {})
            nodes.join(kind, STARTING)
        undo.pop_all()
    return PsLiteStore(kind, rank, size, nodes, rendezvous)


def _start(nodes: Nodes, workers: Workers, servers: int) -> None:
    """Start this worker's child and its share of the servers; worker 0 also starts the scheduler."""
    mine = [("server", number) for number, owner in enumerate(owners(workers.hosts, servers)) if owner == workers.rank]
    own = None
    if not workers.one_host:
        if INTERFACE not in os.environ:
            raise Refused(text("store.mxnet.no-card", variable=INTERFACE))
        own = own_address()
        if ":" in own:
            raise Refused(text("store.mxnet.ipv4", address=own))
    if workers.rank == 0:
        mine.insert(0, ("scheduler", 0))
    address = own or "127.0.0.1"
    with socket.create_server((address, 0)) as probe:
        port = probe.getsockname()[1]  # a free one
    root = workers.rendezvous.all_gather("root", (address, port))[0]
    for role, number in (*mine, ("worker", workers.rank)):
        nodes.start(role, number, environment(role, number, tuple(root), workers.size, servers, own))
    processes = zip(workers.hosts, workers.rendezvous.all_gather("pids", nodes.pids()), strict=True)
    for other, (host, pids) in enumerate(processes):
        if other != workers.rank and host == workers.hosts[workers.rank]:
            nodes.watch(pids)


# ---- the values that MXNet can hold, and its optimizers that take the same steps as ours


def require_value(spec: KeySpec, dist: bool) -> None:
    """Raise Refused if a store of MXNet cannot hold such a value."""
    dtypes = FLOATING if dist else DTYPES
    if spec.dtype not in dtypes or not spec.elements:
        found = {"elements": spec.elements, "dtype": spec.dtype, "dtypes": ", ".join(map(name, dtypes))}
        raise Refused(text("store.mxnet.value", key=repr(spec.key), **found))


def require_steps(spec: KeySpec, optimizer: Optimizer) -> None:
    """Raise Refused if MXNet's optimizer cannot step such a value."""
    dtypes = FLOATING[:1] if optimizer.rule == "adagrad" else FLOATING
    if spec.dtype not in dtypes:
        found = {"dtype": spec.dtype, "rule": optimizer.rule, "dtypes": ", ".join(map(name, dtypes))}
        raise Refused(text("store.mxnet.step", key=repr(spec.key), **found))


def name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in MXNet and NumPy."""
    return str(dtype).removeprefix("torch.")


def mxnet_optimizer(optimizer: Optimizer, summed: int) -> tuple[str, dict]:
    """Return (name, numbers) of MXNet's optimizer with the same steps. Raises Refused if there is none.

    MXNet's AdaGrad has eps under the root, and its Adam adds eps before the bias correction: with the usual small eps
    the steps are the same up to rounding.
    """
    rule, numbers = optimizer.rule, dict(optimizer.numbers)
    options = {
        "learning_rate": numbers.pop("lr"),
        "wd": numbers.pop("weight_decay", 0.0),
        "rescale_grad": 1 / summed if optimizer.scale == "mean" else optimizer.scale,
    }
    eps = numbers.pop("eps", 1e-8 if rule == "adam" else 1e-10)
    if rule != "sgd" and not 0 < eps <= 1e-8:
        raise Refused(text("store.mxnet.eps", eps=repr(eps), rule=rule))
    if rule == "adagrad" and options["wd"]:
        raise Refused(text("store.mxnet.decay"))
    eps = {"sgd": {}, "adagrad": {"eps": eps**2}, "adam": {"epsilon": eps}}[rule]
    return rule, options | eps | numbers
