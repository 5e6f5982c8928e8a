"""Run many schedules, each of its own seed, and shrink the first one that breaks a promise.

``python -m d2lps.kvstore.replication 10000`` runs that many.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace

from d2lps.kvstore.replication import story
from d2lps.kvstore.replication.promises import Violation
from d2lps.kvstore.replication.world import FaultPlan, World, shrunk
from d2lps.messages import allow_any_letter

LAST = 40  # lines to print of what happened before a promise was broken


def main() -> int:
    allow_any_letter()
    parser = argparse.ArgumentParser(prog="python -m d2lps.kvstore.replication", description=__doc__)
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
        print("\n".join([*story.lines(world)][-LAST:]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
