"""A recorded run of a world, as a trace for the player."""

from collections.abc import Iterator
from fractions import Fraction

from d2lps.kvstore.replication.messages import Add, Apply, Name, Push, Snapshot, Values
from d2lps.kvstore.replication.world import World
from d2lps.plan.plan import Plan
from d2lps.simulate import Delivery
from d2lps.topology.graph import Link, Topology
from d2lps.trace import Event, Trace
from d2lps.units import Bandwidth

SIZE = 1_000_000  # bytes of a part in a picture; virtual time does not depend on it


def trace(world: World) -> Trace:
    """Return the pushes, commands and values of a recorded world, with the gradients that each carries.

    A key is a round of a part, ``"2"`` or, if there are several parts, ``"2.1"``. Lost messages are not shown. A server
    that starts again is another node.
    """
    schedule = world.schedule
    keys = {
        (round, part): f"{round}.{part}" if schedule.parts > 1 else str(round)
        for round in range(1, schedule.rounds + 1)
        for part in range(schedule.parts)
    }
    events = [event for delivery in world.deliveries or () for event in _events(delivery, keys)]
    workers = [f"worker{rank}" for rank in range(schedule.workers)]
    names = {node for event in events for node in (event.src, event.dst)}
    end, key = max(event.end for event in events), keys[1, 0]
    dead = [(time, shown(node)) for time, node in world.deaths if shown(node) in names and time < end]
    events += [Event("gone", 1, time, end, node, node, key, "gone", 0) for time, node in dead]
    events.sort(key=lambda event: (event.start, event.end))
    servers = sorted(names - {*workers})
    links = tuple(Link(src, dst, Bandwidth("inf")) for src in workers + servers for dst in servers if src != dst)
    links += tuple(Link(server, worker, Bandwidth("inf")) for server in servers for worker in workers)
    share = dict.fromkeys(keys.values(), Fraction(1, len(keys)))
    plan = Plan(workers + servers, share, [[] for _ in range(schedule.rounds)], holds=workers, wants=[])
    topology = Topology("pairs", dict.fromkeys(workers + servers, "machine"), links)
    return Trace("shared", plan, topology, SIZE * len(keys), tuple(events))


def shown(name: Name) -> str:
    """Return ``server1`` for the first life of server 1, then ``server1b``, ``server1c`` and so on."""
    kind, number, *life = name if isinstance(name, tuple) else (name, "")
    return f"{kind}{number}" + (chr(ord("a") + life[0]) if life and life[0] else "")


def _events(delivery: Delivery, keys: dict) -> Iterator[Event]:
    start, end, src, dst, message = delivery
    if end is None:
        return
    if isinstance(message, Push):
        copies = [("add", message.round, message.part, [message.rank])]
    elif isinstance(message, Apply) and isinstance(message.command, Add):
        add = message.command
        rounds = sorted({round for _, round in add.pushes})
        copies = [
            ("copy", round, add.part, [rank for rank, number in add.pushes if number == round]) for round in rounds
        ]
    elif isinstance(message, Values):
        copies = [
            ("copy", round, part, [rank for rank, number in enumerate(content.rounds) if number == round])
            for part, content in message.parts
            if (round := max(content.rounds))
        ]
    elif isinstance(message, Snapshot):
        copies = [
            ("copy", round, part, [rank for rank, last in enumerate(content.rounds) if last >= round])
            for part, content in enumerate(message.parts)
            for round in range(1, max(content.rounds) + 1)
        ]
    else:
        return
    for op, round, part, ranks in copies:
        carries = tuple(f"worker{rank}" for rank in ranks)
        yield Event("send", round, start, end, shown(src), shown(dst), keys[round, part], op, SIZE, carries)
