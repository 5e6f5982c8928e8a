"""Run many schedules of faults, each of its own seed, and shrink the first one that breaks a promise.

``make simulate SCHEDULES=10000`` runs that many.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace

from d2lps.kvstore.replication import FaultPlan, World, story
from d2lps.kvstore.replication.promises import Violation
from d2lps.messages import allow_any_letter

LAST = 40  # lines to print of what happened before a promise was broken


def broken(schedule: FaultPlan, **classes) -> str | None:
    """Return the promise that breaks under a schedule, or None. ``classes`` are passed to :class:`World`."""
    try:
        World(schedule, **classes).run()
    except Violation as violation:
        return str(violation)
    return None


def shrunk(schedule: FaultPlan, **classes) -> FaultPlan:
    """Simplify a schedule step by step while it still breaks a promise."""
    for simpler in _simpler(schedule):
        if broken(simpler, **classes):
            return shrunk(simpler, **classes)
    return schedule


def _simpler(schedule: FaultPlan) -> Iterator[FaultPlan]:
    """Yield schedules with one trouble less, or one field back at its default."""
    for i in range(len(schedule.troubles)):
        yield replace(schedule, troubles=schedule.troubles[:i] + schedule.troubles[i + 1 :])
    for field in fields(schedule):
        if field.name not in ("seed", "kind", "troubles") and getattr(schedule, field.name) != field.default:
            yield replace(schedule, **{field.name: field.default})


def lines(world: World) -> Iterator[str]:
    """Yield a line for each message of a recorded world, in the order of sending."""
    for start, end, src, dst, message in world.deliveries:
        arrives = "lost" if end is None else f"{1e3 * end:7.1f}"
        yield f"{1e3 * start:7.1f} {arrives:>7} ms  {story.shown(src)} → {story.shown(dst)}  {message}"


def main() -> int:
    allow_any_letter()
    parser = argparse.ArgumentParser(prog="python -m helpers.simulation", description=__doc__)
    parser.add_argument("schedules", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after that long")
    options = parser.parse_args()
    outcomes, start = Counter(), time.monotonic()
    for seed in range(options.seed, options.seed + options.schedules):
        if time.monotonic() - start > options.seconds:
            break
        schedule = replace(FaultPlan.drawn(seed), late=seed % 3 == 2, joint=seed % 3 == 1)
        try:
            outcomes[World(schedule).run()] += 1
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return _show(shrunk(schedule))
    seconds, count = time.monotonic() - start, outcomes.total()
    print(f"{count} schedules, no promise broken: {dict(outcomes)}; {count / seconds:.0f} per second")
    return 0


def _show(schedule: FaultPlan) -> int:
    world = World(schedule, recorded=True)
    try:
        world.run()
    except Violation as violation:
        print(f"the simplest schedule that breaks it: {schedule}\n{violation}\nwhat happened before:")
        print("\n".join([*lines(world)][-LAST:]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
