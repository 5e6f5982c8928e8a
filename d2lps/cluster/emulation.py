"""Several hosts on one machine, each with its own network, and links as slow as you choose.

>>> from d2lps import cluster
>>> import socket
>>> with cluster.emulated(hosts=2, bandwidth="100 Mbit/s") as two:
...     two.run(socket.gethostname)
['host0', 'host1']

No root is needed, nothing outside is touched, and nothing is left behind: the hosts live in namespaces of the kernel,
and end with the process that holds them. Every host has a network card (``eth0``) on one switch, or on the switch of
its rack; both directions of its link, and of the uplinks between racks, are shaped.
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
from d2lps.cluster.run import Job, Member
from d2lps.messages import language, text
from d2lps.plan.plan import Plan
from d2lps.topology import PCIE, Topology, machines
from d2lps.topology.hosts import in_racks
from d2lps.trace import Trace
from d2lps.units import Bandwidth, is_count

NETWORK = "10.77.0"  # inside a namespace, so it cannot collide with other networks
MOST = 64  # hosts
SLOWEST, FASTEST = 125_000.0, 1.25e9  # bytes per second between which shaping is accurate
# Bytes per second that one core moves between hosts, in one rack or in two: faster links would not be the bottleneck.
PER_CORE = 200_000_000
BURST = 80 * 1024  # bytes that may pass at once: at least one segment of 64 KiB
# Seconds of a card's rate, and least bytes, that a connection may have under way if there are racks: with equal windows
# connections share an uplink equally, as the model assumes. Otherwise the widest window takes most of the uplink.
WINDOW, NARROWEST = 2.5e-3, 16 * 1024
PORTS = range(29500, 49500)  # for the meeting of a run's processes; each run takes the next
TOOLS = "unshare", "ip", "tc"
GOODPUT = 1448 / 1514  # payload of a packet, and its bytes on an Ethernet link


class Cluster:
    """Emulated hosts, made by :func:`emulated`; a ``with`` block removes them at its end."""

    def __init__(
        self,
        hosts: int,
        gpus_per_host: int,
        bandwidth: Bandwidth,
        servers: int,
        inside: Bandwidth,
        uplinks: dict[str, Bandwidth],
    ):
        self.gpus_per_host, self.bandwidth, self.inside = gpus_per_host, bandwidth, inside
        self.hosts = tuple(f"host{i}" for i in range(hosts)) + tuple(f"server{i}" for i in range(servers))
        self.address = {name: f"{NETWORK}.{i}" for i, name in enumerate(self.hosts, 1)}
        self._workers, self._servers = hosts, servers
        self._rates, self._uplinks = dict.fromkeys(self.hosts, bandwidth), uplinks
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
        above, shape = in_racks(self.hosts, len(self._uplinks) or 1), _shape(self.bandwidth)
        ip, tc = ["link set lo up"], [f"qdisc add dev {name} root {shape}" for name in self.hosts]
        for bridge in "network", *self._uplinks:
            ip += [f"link add name {bridge} type bridge", f"link set {bridge} up"]
        for name, pid in self._control.pids.items():
            ip += [f"link add name {name} type veth peer name eth0 netns {pid}"]
        for rack, rate in self._uplinks.items():  # each end shapes the packets that enter the link there
            ip += [f"link add name {rack}-up type veth peer name {rack}-down"]
            above |= {f"{rack}-up": rack, f"{rack}-down": "network"}
            tc += [f"qdisc add dev {rack}-{end} root {_shape(rate)}" for end in ("up", "down")]
        for name, bridge in above.items():
            ip += [f"link set {name} master {bridge} up", f"link set {name} type bridge_slave flood off"]
        self._control.network({SWITCH: (ip, tc)})
        inside = {
            name: (
                ["link set lo up", f"address add {at}/24 dev eth0", "link set eth0 up", *self._windows(at)],
                [f"qdisc add dev eth0 root {shape}"],
            )
            for name, at in self.address.items()
        }
        self._control.network(inside)

    def _windows(self, at: str) -> list[str]:
        window = max(NARROWEST, round(WINDOW * self.bandwidth))
        return [f"route replace {NETWORK}.0/24 dev eth0 src {at} window {window}"] if self._uplinks else []

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.hosts) - len(self.lost)} hosts"
        return f"<Cluster of {len(self.hosts)} emulated hosts, {self.bandwidth} each way: {state}>"

    def close(self) -> None:
        """End all processes and hosts, leaving nothing behind; closing twice does nothing."""
        self._control.close()

    @property
    def closed(self) -> bool:
        """True once the cluster is closed."""
        return self._control.closed

    @property
    def lost(self) -> set[str]:
        """The hosts that are lost."""
        return self._control.lost - {SWITCH}

    @property
    def topology(self) -> Topology:
        """The hosts as the cost model sees them; the bandwidth of a link excludes the headers of packets."""
        rates = [Bandwidth(rate * GOODPUT) for rate in self._rates.values()]
        uplinks = [Bandwidth(rate * GOODPUT) for rate in self._uplinks.values()]
        gpus, servers, racks = self.gpus_per_host, self._servers, len(uplinks) or 1
        return machines(self._workers, gpus, rates, self.inside, servers=servers, racks=racks, uplink=uplinks or None)

    def nodes(self, host: str) -> tuple[str, ...]:
        """Return the nodes of the topology that lie on ``host`` and that one process plays."""
        self._require(host)
        return self._nodes[host]

    def start(
        self,
        task: "Callable | Sequence[str]",
        *arguments: object,
        hosts: Iterable[str] | None = None,
        per_host: int = 1,
        deadline: "float | str" = 120.0,
        env: "dict[str, str] | None" = None,
    ) -> Job:
        """Start a function or a program on hosts, without waiting for it; :meth:`Job.results` waits.

        Every process has the environment variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
        MASTER_PORT; also the interface for gloo, NCCL and MXNet, a secret for the store (D2LPS_SECRET), and the nodes
        that it plays (:func:`playing`).

        Args:
            task: A function, called with ``arguments`` in a process of its own in which torch is already imported; or a
                program and its arguments.
            *arguments: The arguments of the function; they are copied to the hosts.
            hosts: The hosts; all if left out.
            per_host: The number of processes on each host.
            deadline: Seconds, or a text such as ``"30 s"``, until all must have ended; processes that have not are
                killed.
            env: Further environment variables.

        Returns:
            The processes.

        Raises:
            ClusterError: If there is no such host or program, or the cluster is closed.
            HostLost: If one of the hosts is lost.
        """
        self._require_open()
        names = self.hosts if hosts is None else [hosts] if isinstance(hosts, str) else list(hosts)
        for name in names:
            self._require_there(name)
        if not names:
            raise ClusterError(text("cluster.no-hosts", hosts=" ".join(self.hosts)))
        _require_count("per_host", per_host, 1, MOST)
        seconds, argv = units.seconds(deadline), None if callable(task) else _program(task)
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
        if argv is None:  # the store in which they meet is made for them, as torchrun does
            common["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        members, environments = [], []
        for rank, (name, local) in enumerate((name, local) for name in names for local in range(per_host)):
            identity = {"RANK": str(rank), "LOCAL_RANK": str(local), "D2LPS_PLAYING": " ".join(self.nodes(name))}
            environments.append(common | identity | (env or {}))
            members.append(Member(name, rank))
        with os.fdopen(os.memfd_create("call"), "wb", buffering=0) as call:
            if argv is None:
                import cloudpickle

                call.write(cloudpickle.dumps((task, arguments)))
            return self._control.start(members, argv, call.fileno(), environments, seconds)

    def run(self, task: "Callable | Sequence[str]", *arguments: object, **options) -> list:
        """:meth:`start`, and wait for the :meth:`Job.results`.

        Args:
            task, *arguments, **options: As for :meth:`start`.

        Returns:
            The result of the function on each host, or an :class:`Ended` for each program, in the order of ranks.

        Raises:
            ClusterError, HostLost, RunFailed: As for :meth:`start` and :meth:`Job.results`; an error that a function
                raised is raised here.
        """
        return self.start(task, *arguments, **options).results()

    def measure(self, plan: Plan, nbytes: "int | str", rounds: int = 3, deadline: "float | str" = 120.0) -> Trace:
        """Run ``plan`` on the hosts, each playing its own nodes, and check that all sums are right.

        Args:
            plan: A plan between nodes of :attr:`topology`; hosts that play none of them rest.
            nbytes: The gradient's size in bytes, such as ``"20 MB"``.
            rounds: The number of rounds, after one to warm up.
            deadline: Seconds for all of it.

        Returns:
            The round of median time.

        Raises:
            ClusterError, HostLost, RunFailed: As for :meth:`run`.
            TopologyError: If a node of the plan is on no host.
        """
        from d2lps.cluster.measured import measured

        topology = self.topology
        for node in plan.nodes:
            topology.require_node(node)
        hosts = [name for name in self.hosts if {*self.nodes(name)} & {*plan.nodes}]
        _require_count("rounds", rounds, 1, 1000)
        return self.run(measured, plan, topology, units.size(nbytes), rounds, hosts=hosts, deadline=deadline)[0]

    def kill(self, host: str) -> None:
        """End a host as if its power were cut. It does not come back."""
        self._require(host)
        self._control.kill(host)

    def cut(self, a: str, b: "str | None" = None) -> None:
        """Drop all packets between two hosts, or between one and all others, without any error message.

        Args:
            a, b: Their names; without ``b``, all others.
        """
        self._between(a, b, "replace", "lladdr 02:00:00:00:00:00 nud permanent")  # no host has that address

    def heal(self, a: str, b: "str | None" = None) -> None:
        """Undo :meth:`cut` with the same arguments."""
        self._between(a, b, "del", "")

    def reshape(self, host: str, bandwidth: "str | Bandwidth") -> None:
        """Give a host's card another bandwidth, both ways.

        Args:
            host: Its name.
            bandwidth: Bytes per second, one way, such as ``"40 Mbit/s"``.
        """
        self._require_there(host)
        rate = _require_shapeable(bandwidth)
        _require_honest({**self._rates, host: rate}.values())
        change = f"root {_shape(rate)}"
        self._control.network(
            {SWITCH: ([], [f"qdisc change dev {host} {change}"]), host: ([], [f"qdisc change dev eth0 {change}"])}
        )
        self._rates[host] = rate

    def _between(self, a: str, b: "str | None", verb: str, options: str) -> None:
        for name in (a, b) if b is not None else (a,):
            self._require_there(name)
        others = [b] if b is not None else [name for name in self.hosts if name not in {a, *self.lost}]

        def change(peer: str) -> str:
            return f"neighbour {verb} {self.address[peer]} dev eth0 {options}"

        self._control.network({a: ([*map(change, others)], []), **{other: ([change(a)], []) for other in others}})

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
    racks: int = 1,
    uplink: "str | Bandwidth | None" = None,
) -> Cluster:
    """Make hosts with their own networks on this machine; a ``with`` block removes them at its end.

    Args:
        hosts: The number of hosts with workers.
        gpus_per_host: The number of GPUs of each. They exist only as names in the topology, played by the one process
            on a host.
        bandwidth: The bandwidth of each network card, one way, both ways shaped alike: 1 Mbit/s to 10 Gbit/s, and in
            all no more than the processors here can carry, since otherwise they and not the links would be the
            bottleneck.
        servers: The number of further hosts, ``server0`` …, with a processor and no worker.
        inside: The bandwidth of the links inside a host, one way, in the topology only: inside a host nothing is
            shaped.
        racks: The number of racks, each with a switch of its own, to which the hosts and then the servers are dealt in
            order and as equally as possible (:func:`d2lps.machines`).
        uplink: The bandwidth between each rack and the spine, one way, both ways shaped alike; by default that of all
            cards of the rack together.

    Returns:
        The hosts ``host0``, ``host1``, …, and servers.

    Raises:
        ClusterError: For numbers that do not fit, and for more hosts or faster links than this machine can emulate.
        NoEmulation: If this system does not allow namespaces, or lacks a program; the message says which.
        TopologyError: For an uplink without racks.
        UnitError: For a bandwidth that cannot be read.

    Example:
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
    _require_count("racks", racks, 1, hosts + servers)
    rate = _require_shapeable(bandwidth)
    uplinks = _uplinks(rate, hosts + servers, racks, uplink)
    _require_honest([rate] * (hosts + servers))
    _require_able()
    return Cluster(hosts, gpus_per_host, rate, servers, units.bandwidth(inside), uplinks)


def _shape(rate: Bandwidth) -> str:
    return f"tbf rate {round(8 * rate)}bit burst {BURST}b latency 400ms"


def _uplinks(rate: Bandwidth, hosts: int, racks: int, uplink: "str | Bandwidth | None") -> dict[str, Bandwidth]:
    """Return rack → the bandwidth of its uplink; empty if there is one rack only."""
    network = machines(hosts, 0, nic=rate, racks=racks, uplink=uplink)
    joins = {link.src: link.bandwidth for link in network.links if link.dst == "network"}
    return {end: _require_shapeable(rate) for end, rate in joins.items() if racks > 1}


def _program(argv: Sequence[str]) -> list[str]:
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence) or not argv:
        raise ClusterError(text("cluster.program", given=repr(argv)))
    argv = [str(argument) for argument in argv]
    if shutil.which(argv[0]) is None:
        raise ClusterError(text("cluster.no-program", program=argv[0]))
    for argument in argv[1:]:
        if argument.endswith(".py") and not Path(argument).exists():
            raise ClusterError(text("cluster.no-script", script=argument, folder=os.getcwd()))
    return argv


def _require_count(name: str, value: object, least: int, most: int) -> None:
    if not is_count(value, least, most):
        raise ClusterError(text("cluster.count", what=name, value=repr(value), least=least, most=most))


def _require_shapeable(bandwidth: "str | Bandwidth") -> Bandwidth:
    rate = units.bandwidth(bandwidth)
    if not SLOWEST <= rate <= FASTEST:
        raise ClusterError(text("cluster.bandwidth", value=rate, least=Bandwidth(SLOWEST), most=Bandwidth(FASTEST)))
    return rate


def _require_honest(rates: Iterable[float]) -> None:
    """Raise ClusterError if all hosts together can send more than the processors can carry."""
    rates, carried = list(rates), PER_CORE * (os.cpu_count() or 1)
    if sum(rates) > carried:
        honest = 10 ** math.floor(math.log10(carried / len(rates)))
        honest = Bandwidth(carried / len(rates) // honest * honest)
        values = {"hosts": len(rates), "carried": Bandwidth(carried), "honest": honest, "cores": os.cpu_count()}
        raise ClusterError(text("cluster.too-much", **values))


def _require_able() -> None:
    if sys.platform != "linux":
        raise NoEmulation(text("cluster.not-linux", system=sys.platform))
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATHS) is None]
    if missing:
        raise NoEmulation(text("cluster.missing", tools=", ".join(missing)))
