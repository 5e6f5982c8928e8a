"""``python -m d2lps.kvstore.replication 10000``: that many schedules, each of its own seed; what breaks is shrunk."""

import argparse
import sys
import time
from collections import Counter

from d2lps.kvstore.replication import story
from d2lps.kvstore.replication.promises import Violation
from d2lps.kvstore.replication.world import Schedule, World, shrunk

LAST = 40  # lines of what happened before a promise broke


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m d2lps.kvstore.replication", description=__doc__)
    parser.add_argument("schedules", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after that long")
    asked = parser.parse_args()
    ends, begun = Counter(), time.monotonic()
    for seed in range(asked.seed, asked.seed + asked.schedules):
        if time.monotonic() - begun > asked.seconds:
            break
        try:
            ends[World(Schedule.drawn(seed)).run()] += 1
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return _told(shrunk(Schedule.drawn(seed)))
    took, count = time.monotonic() - begun, ends.total()
    print(f"{count} schedules, no promise broken: {dict(ends)}; {count / took:.0f} per second")
    return 0


def _told(schedule: Schedule) -> int:
    world = World(schedule, recorded=True)
    try:
        world.run()
    except Violation as violation:
        print(f"the simplest like it: {schedule}\n{violation}\nwhat happened before:")
        print("\n".join([*story.lines(world)][-LAST:]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
