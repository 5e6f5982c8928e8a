"""Several hosts on one machine, with networks of their own and links as slow as you say.

>>> from d2lps import cluster
>>> import socket
>>> with cluster.emulated(hosts=2, bandwidth="100 Mbit/s") as two:
...     two.run(socket.gethostname)
['host0', 'host1']

No root is needed, nothing outside is touched, and nothing is left: the hosts live in namespaces of the kernel, and
end with the process that holds them. Every host has a network card (``eth0``) on one switch; both directions of every
card are shaped.
"""

import math
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from d2lps import units
from d2lps.cluster.control import PATHS, SWITCH, Control
from d2lps.cluster.errors import ClusterError, HostLost, NoEmulation
from d2lps.cluster.run import Member, Run
from d2lps.messages import language, text
from d2lps.plan.plan import Plan
from d2lps.topology import PCIE, Topology, machines
from d2lps.trace import Trace
from d2lps.units import Bandwidth, is_count

NETWORK = "10.77.0"  # of a world of its own, so it is in nobody's way
MOST = 64  # hosts
SLOWEST, FASTEST = 125_000.0, 1.25e9  # bytes per second that shaping keeps to
PER_CORE = 200_000_000  # bytes per second that one core moves between hosts; links that ask for more would not decide
BURST = 80 * 1024  # bytes that may pass at once: at least one segment of 64 KiB
PORTS = range(29500, 49500)  # on which the processes of a run meet, each run on the next
TOOLS = "unshare", "ip", "tc"
GOODPUT = 1448 / 1514  # what a packet carries, and what it takes on an Ethernet link


class Cluster:
    """Emulated hosts: made by :func:`emulated`. In a ``with`` block they are gone when it ends."""

    def __init__(self, hosts: int, gpus_per_host: int, bandwidth: Bandwidth, servers: int, inside: Bandwidth):
        self.gpus_per_host, self.bandwidth, self.inside = gpus_per_host, bandwidth, inside
        self.hosts = tuple(f"host{i}" for i in range(hosts)) + tuple(f"server{i}" for i in range(servers))
        self.address = {name: f"{NETWORK}.{i}" for i, name in enumerate(self.hosts, 1)}
        self._workers, self._servers = hosts, servers
        self._rates = dict.fromkeys(self.hosts, bandwidth)
        kinds = self.topology.kinds
        playable = [node for node in kinds if kinds[node] != "switch"]
        self._nodes = {host: tuple(n for n in playable if n.partition("/")[0] == host) for host in self.hosts}
        self._started, self._secret = 0, secrets.token_hex(16)
        self._control = Control(self.address)
        try:
            self._lay()
        except BaseException:
            self.close()
            raise

    def _lay(self) -> None:
        ip = ["link set lo up", "link add name net type bridge", "link set net up"]
        for name, pid in self._control.pids.items():
            ip += [f"link add name {name} type veth peer name eth0 netns {pid}"]
            ip += [f"link set {name} master net up", f"link set {name} type bridge_slave flood off"]
        shape = _shape(self.bandwidth)
        self._control.network({SWITCH: (ip, [f"qdisc add dev {name} root {shape}" for name in self.hosts])})
        inside = {
            name: (
                ["link set lo up", f"address add {at}/24 dev eth0", "link set eth0 up"],
                [f"qdisc add dev eth0 root {shape}"],
            )
            for name, at in self.address.items()
        }
        self._control.network(inside)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.hosts) - len(self.lost)} hosts"
        return f"<Cluster of {len(self.hosts)} emulated hosts, {self.bandwidth} each way: {state}>"

    def close(self) -> None:
        """End everything on all hosts, and the hosts. Nothing is left; closing twice does nothing."""
        self._control.close()

    # ---- what it is

    @property
    def closed(self) -> bool:
        """Whether it is gone."""
        return self._control.closed

    @property
    def lost(self) -> set[str]:
        """The hosts that are lost."""
        return self._control.lost - {SWITCH}

    @property
    def topology(self) -> Topology:
        """The hosts as the cost model sees them: their links carry what is left beside the headers of packets."""
        rates = [Bandwidth(rate * GOODPUT) for rate in self._rates.values()]
        return machines(self._workers, self.gpus_per_host, nic=rates, inside=self.inside, servers=self._servers)

    def nodes(self, host: str) -> tuple[str, ...]:
        """The nodes of the topology that are ``host``'s, which one process plays.

        Parameters
        ----------
        host : str
            Its name, as in :attr:`hosts`.
        """
        self._require(host)
        return self._nodes[host]

    # ---- what it does

    def start(
        self,
        what: "Callable | Sequence[str]",
        *arguments: object,
        hosts: Iterable[str] | None = None,
        per_host: int = 1,
        deadline: "float | str" = 120.0,
        env: "dict[str, str] | None" = None,
    ) -> Run:
        """Start a function or a program on hosts, and go on: :meth:`Run.results` waits for it.

        Every process finds what torchrun would tell it in its environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR
        and MASTER_PORT; also which interface gloo, NCCL and MXNet are to take, a secret for the store (D2LPS_SECRET),
        and the nodes that it plays (:func:`playing`).

        Parameters
        ----------
        what : callable or sequence of str
            A function, called with ``arguments`` in a process of its own that has torch already; or a program and
            its arguments.
        *arguments
            What the function is given; all of it is copied to the hosts.
        hosts : iterable of str, optional
            Where; on all hosts if left out.
        per_host : int
            How many processes on each.
        deadline : float or str
            Seconds until all must have ended, or such as ``"30 s"``; then those that have not are ended.
        env : dict, optional
            More for their environment.

        Returns
        -------
        Run
            The processes.

        Raises
        ------
        ClusterError
            If there is no such host or program, or the cluster is closed.
        HostLost
            If one of the hosts is lost.
        """
        self._require_open()
        names = self.hosts if hosts is None else [hosts] if isinstance(hosts, str) else list(hosts)
        for name in names:
            self._require_there(name)
        if not names:
            raise ClusterError(text("cluster.no-hosts", hosts=" ".join(self.hosts)))
        _require_count("per_host", per_host, 1, MOST)
        seconds, argv = units.seconds(deadline), None if callable(what) else _program(what)
        self._started += 1
        common = {
            "WORLD_SIZE": str(len(names) * per_host),
            "LOCAL_WORLD_SIZE": str(per_host),
            "MASTER_ADDR": self.address[names[0]],
            "MASTER_PORT": str(PORTS[self._started % len(PORTS)]),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
            "DMLC_INTERFACE": "eth0",
            "D2LPS_LANGUAGE": language(),
            "D2LPS_SECRET": self._secret,
            "PYTHONUNBUFFERED": "1",
        }
        if argv is None:  # where they meet is made for them, as by torchrun
            common["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        members, environments = [], []
        for rank, (name, local) in enumerate((name, local) for name in names for local in range(per_host)):
            own = {"RANK": str(rank), "LOCAL_RANK": str(local), "D2LPS_PLAYING": " ".join(self.nodes(name))}
            environments.append(common | own | (env or {}))
            members.append(Member(name, rank))
        with os.fdopen(os.memfd_create("given"), "wb", buffering=0) as given:
            if argv is None:
                import cloudpickle

                given.write(cloudpickle.dumps((what, arguments)))
            return self._control.start(members, argv, given.fileno(), environments, seconds)

    def run(self, what: "Callable | Sequence[str]", *arguments: object, **options) -> list:
        """:meth:`start`, and wait for the :meth:`Run.results`.

        Parameters
        ----------
        what, *arguments, **options
            As for :meth:`start`.

        Returns
        -------
        list
            What the function returned on each host, or how the program ended there, in the order of ranks.

        Raises
        ------
        ClusterError, HostLost, RunFailed
            As for :meth:`start` and :meth:`Run.results`; an error that a function raised is raised here.
        """
        return self.start(what, *arguments, **options).results()

    def measure(self, plan: Plan, nbytes: "int | str", rounds: int = 3, deadline: "float | str" = 120.0) -> Trace:
        """Run ``plan`` on the hosts, every one of which plays its nodes, and see to it that all sums are right.

        Parameters
        ----------
        plan : Plan
            Between nodes of :attr:`topology`; hosts that play none of them rest.
        nbytes : int or str
            The gradient's size in bytes, such as ``"20 MB"``.
        rounds : int
            How often, after one round to warm up.
        deadline : float or str
            Seconds for all of it.

        Returns
        -------
        Trace
            Of the round whose time is the middle one.

        Raises
        ------
        ClusterError, HostLost, RunFailed
            As for :meth:`run`.
        TopologyError
            If a node of the plan is on no host.
        """
        from d2lps.cluster.measured import measured

        topology = self.topology
        for node in plan.nodes:
            topology.require_node(node)
        there = [name for name in self.hosts if {*self.nodes(name)} & {*plan.nodes}]
        _require_count("rounds", rounds, 1, 1000)
        return self.run(measured, plan, topology, units.size(nbytes), rounds, hosts=there, deadline=deadline)[0]

    def kill(self, host: str) -> None:
        """End a host as if its power were cut. It does not come back.

        Parameters
        ----------
        host : str
            Its name.
        """
        self._require(host)
        self._control.kill(host)

    def cut(self, a: str, b: "str | None" = None) -> None:
        """Let nothing pass between two hosts any more, or between one and all others: packets vanish, nobody is told.

        Parameters
        ----------
        a, b : str
            Their names; without ``b``, all others.
        """
        self._between(a, b, "replace", "lladdr 02:00:00:00:00:00 nud permanent")  # nobody has that address

    def heal(self, a: str, b: "str | None" = None) -> None:
        """Undo :meth:`cut`.

        Parameters
        ----------
        a, b : str
            As they were given to it.
        """
        self._between(a, b, "del", "")

    def reshape(self, host: str, bandwidth: "str | Bandwidth") -> None:
        """Give a host's card another bandwidth, both ways.

        Parameters
        ----------
        host : str
            Its name.
        bandwidth : str or Bandwidth
            Bytes per second, one way, such as ``"40 Mbit/s"``.
        """
        self._require_there(host)
        rate = _require_shapeable(bandwidth)
        _require_honest({**self._rates, host: rate}.values())
        change = f"root {_shape(rate)}"
        lines = {SWITCH: ([], [f"qdisc change dev {host} {change}"]), host: ([], [f"qdisc change dev eth0 {change}"])}
        self._control.network(lines)
        self._rates[host] = rate

    def _between(self, a: str, b: "str | None", do: str, how: str) -> None:
        for name in (a, b) if b is not None else (a,):
            self._require_there(name)
        others = [b] if b is not None else [name for name in self.hosts if name not in {a, *self.lost}]
        lines = {a: ([f"neighbour {do} {self.address[other]} dev eth0 {how}" for other in others], [])}
        lines |= {other: ([f"neighbour {do} {self.address[a]} dev eth0 {how}"], []) for other in others}
        self._control.network(lines)

    def _require(self, host: str) -> None:
        self._require_open()
        if host not in self.hosts:
            raise ClusterError(text("cluster.unknown", host=repr(host), hosts=" ".join(self.hosts)))

    def _require_there(self, host: str) -> None:
        self._require(host)
        if host in self.lost:
            raise HostLost(text("cluster.host-lost", host=host))

    def _require_open(self) -> None:
        if self.closed:
            raise ClusterError(text("cluster.closed"))


def emulated(
    hosts: int = 4,
    gpus_per_host: int = 2,
    bandwidth: "str | Bandwidth" = "400 Mbit/s",
    *,
    servers: int = 0,
    inside: "str | Bandwidth" = PCIE,
) -> Cluster:
    """Hosts with networks of their own, on this machine: use it in a ``with`` block, at whose end they are gone.

    Parameters
    ----------
    hosts : int
        How many hosts have workers.
    gpus_per_host : int
        How many GPUs each has. They are names of the topology: the one process on a host plays them.
    bandwidth : str or Bandwidth
        Of each network card, one way, both ways shaped alike: 1 Mbit/s to 10 Gbit/s, and no more in all than the
        processors here can carry, or the links would not be what decides.
    servers : int
        How many hosts more, ``server0`` …, with a processor and no worker.
    inside : str or Bandwidth
        Of the links inside a host, one way, in the topology only: inside a host nothing is shaped.

    Returns
    -------
    Cluster
        The hosts ``host0``, ``host1``, …, and servers.

    Raises
    ------
    ClusterError
        For numbers that do not fit, and for more hosts or faster links than this machine can emulate.
    NoEmulation
        If this system has no namespaces to give, or lacks a program; the sentence says which.
    UnitError
        For a bandwidth that is none.

    Examples
    --------
    >>> from d2lps import ring
    >>> with emulated(hosts=2, gpus_per_host=0, bandwidth="100 Mbit/s") as two:
    ...     trace = two.measure(ring(["host0/cpu", "host1/cpu"]), "1 MB", rounds=1)
    ...     two.kill("host1")
    >>> trace.measured, trace.steps
    (True, 2)
    """
    _require_count("hosts", hosts, 1, MOST)
    _require_count("servers", servers, 0, MOST - hosts)
    _require_count("gpus_per_host", gpus_per_host, 0, MOST)
    rate = _require_shapeable(bandwidth)
    _require_honest([rate] * (hosts + servers))
    _require_able()
    return Cluster(hosts, gpus_per_host, rate, servers, units.bandwidth(inside))


def _shape(rate: Bandwidth) -> str:
    return f"tbf rate {round(8 * rate)}bit burst {BURST}b latency 400ms"


def _program(argv: Sequence[str]) -> list[str]:
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence) or not argv:
        raise ClusterError(text("cluster.program", given=repr(argv)))
    argv = [str(each) for each in argv]
    if shutil.which(argv[0]) is None:
        raise ClusterError(text("cluster.no-program", program=argv[0]))
    for each in argv[1:]:
        if each.endswith(".py") and not Path(each).exists():
            raise ClusterError(text("cluster.no-script", script=each, folder=os.getcwd()))
    return argv


def _require_count(what: str, value: object, least: int, most: int) -> None:
    if not is_count(value, least, most):
        raise ClusterError(text("cluster.count", what=what, value=repr(value), least=least, most=most))


def _require_shapeable(bandwidth: "str | Bandwidth") -> Bandwidth:
    rate = units.bandwidth(bandwidth)
    if not SLOWEST <= rate <= FASTEST:
        raise ClusterError(text("cluster.bandwidth", value=rate, least=Bandwidth(SLOWEST), most=Bandwidth(FASTEST)))
    return rate


def _require_honest(rates: Iterable[float]) -> None:
    """What all hosts send at once must be less than the processors can carry."""
    rates, carried = list(rates), PER_CORE * (os.cpu_count() or 1)
    if sum(rates) > carried:
        honest = 10 ** math.floor(math.log10(carried / len(rates)))
        honest = Bandwidth(carried / len(rates) // honest * honest)
        said = {"hosts": len(rates), "carried": Bandwidth(carried), "honest": honest, "cores": os.cpu_count()}
        raise ClusterError(text("cluster.too-much", **said))


def _require_able() -> None:
    if sys.platform != "linux":
        raise NoEmulation(text("cluster.not-linux", system=sys.platform))
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATHS) is None]
    if missing:
        raise NoEmulation(text("cluster.missing", tools=", ".join(missing)))
