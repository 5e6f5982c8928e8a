"""With what this chapter opens: a training that dies once, without a word of any language."""

from fractions import Fraction

from d2lps import Event, Link, Plan, Topology, Trace

WORKERS, ROUNDS, HALVES = ("w0", "w1"), 10, {"a": "s0", "b": "s1"}
NBYTES = 4_000_000  # of a half of the gradient
COMPUTING, TRAVEL = 0.006, 0.004  # seconds for a gradient, and for a message
SAVING = 0.012  # seconds to write all to a disk, or to read it
FATAL = 9  # in which round s1 dies
NOTICED = 0.012  # seconds after which its silence is taken for its death
STARTING = 0.024  # seconds until everything has been ended, and started anew


def opening() -> dict[str, Trace]:
    """All begins anew when a server dies: from nothing, or from the last of few or of many checkpoints."""
    ways = {"no checkpoint": ROUNDS, "every third round": 3, "every round": 1}
    return {name: Run("disk", rounds=ROUNDS, fatal=FATAL).back_to_checkpoint(every) for name, every in ways.items()}


class Run:
    """The events so far, and the time."""

    def __init__(self, *more: str, rounds: int, fatal: int):
        self.nodes, self.now, self.events = (*WORKERS, "s0", "s1", *more), 0.0, []
        self.rounds, self.fatal = rounds, fatal

    def back_to_checkpoint(self, every: int) -> Trace:
        """Save after so many rounds, die in the fatal one, and go back to the checkpoint."""
        for round in range(1, self.fatal):
            self.finish(round, every)
        self.push(self.fatal, HALVES)
        died, saved = self.now, (self.fatal - 1) // every * every
        again = died + NOTICED + STARTING
        self.gone("s1", died, again)
        for node in (*WORKERS, "s0"):
            self.gone(node, died + NOTICED, again)
        self.now = again
        if saved:
            self.copy([("disk", node, half) for half, node in HALVES.items()], range(1, saved + 1), SAVING)
            self.copy([(node, each, half) for half, node in HALVES.items() for each in WORKERS], range(1, saved + 1))
        for round in range(saved + 1, self.rounds + 1):
            self.finish(round, every)
        return self.trace()

    def finish(self, round: int, every: int) -> None:
        self.push(round, HALVES)
        self.answer(round, HALVES)
        if round % every == 0 and round < self.rounds:
            self.copy([(node, "disk", half) for half, node in HALVES.items()], range(1, round + 1), SAVING)

    def push(self, round: int, primaries: dict[str, str], again: bool = False) -> None:
        self.now += 0 if again else COMPUTING
        for half, server in primaries.items():
            for node in WORKERS:
                self.send(round, half, node, server, "add", (node,))
        self.now += TRAVEL

    def answer(self, round: int, primaries: dict[str, str]) -> None:
        for node in WORKERS:
            for half, server in primaries.items():
                self.send(round, half, server, node, "copy", WORKERS)
        self.now += TRAVEL

    def copy(self, ways: list[tuple[str, str, str]], rounds: "range | list[int]", takes: float = TRAVEL) -> None:
        for src, dst, half in ways:
            for round in rounds:
                self.send(round, half, src, dst, "copy", WORKERS, takes)
        self.now += takes

    def send(
        self, round: int, half: str, src: str, dst: str, op: str, carries: tuple[str, ...], takes: float = TRAVEL
    ) -> None:
        ends = self.now, self.now + takes, src, dst
        self.events.append(Event("send", round, *ends, f"{half}{round}", op, NBYTES, carries))

    def gone(self, node: str, start: float, end: float) -> None:
        self.events.append(Event("gone", self.fatal, start, end, node, node, "a1", "gone", 0))

    def trace(self) -> Trace:
        used = dict.fromkeys((event.src, event.dst) for event in self.events if event.kind == "send")
        links = [Link(*pair, f"{NBYTES / TRAVEL / 1e9:g} GB/s") for pair in used]
        network = Topology("network", dict.fromkeys(self.nodes, "machine"), links)
        keys = [f"{half}{round}" for half in HALVES for round in range(1, self.rounds + 1)]
        share = {key: Fraction(1, len(keys)) for key in keys}
        plan = Plan(self.nodes, share, [[] for _ in range(self.rounds)], holds=WORKERS, wants=[])
        events = tuple(sorted(self.events, key=lambda event: (event.start, event.end)))
        return Trace("shared", plan, network, NBYTES * len(keys), events)
