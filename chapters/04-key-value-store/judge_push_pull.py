"""Judge push and pull: play them between workers and servers, decode who is counted in each sum, and count bytes.

Worker i pushes 4^i, each round and key in elements of its own, so a sum tells who is in it and how often. The first
order of turns lets one worker run ahead of the others as far as it can; that is where early answers show.
"""

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, size_text, unlike

from .judge_count_workers import decode
from .network import Deadlock, Idle, Message, Network, Unsendable

KEYS, ROUNDS = 6, 3
ELEMENTS = 1080  # of a value: KEYS · ROUNDS divides it
NBYTES = 4 * ELEMENTS
HEADER = 64  # bytes of a message beside the value: words, keys, numbers
UNEVEN = 1.5  # times its even part that a server may take in


@dataclass(frozen=True)
class ServedCase:
    """n workers and k servers, and how their names begin."""

    n: int
    k: int
    named: tuple[str, str] = ("worker", "server")

    @property
    def label(self) -> str:
        return f"n = {self.n}, k = {self.k}"

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(f"{self.named[0]}{i}" for i in range(self.n))

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(f"{self.named[1]}{i}" for i in range(self.k))


# The node that continues, of those that could: the first, the last, or a random one.
ORDERS: tuple[Callable[[], Callable[[list[str]], str]], ...] = (
    lambda: lambda able: able[0],
    lambda: lambda able: able[-1],
    lambda: random.Random(0).choice,
)


def judge(case: ServedCase, answer: Callable) -> list[Message]:
    """The messages of a right answer, played in the first order of turns; raises Failure."""
    runs = [_Run(case, answer, order()) for order in ORDERS]
    for run in runs:
        run.play()
        run.count()
    return runs[0].net.messages


class _Run:
    """One run of an answer; what each worker is doing is kept, to say who waits for what."""

    def __init__(self, case: ServedCase, answer: Callable, pick: Callable[[list[str]], str]):
        self.case, self.answer = case, answer
        self.net = Network([*case.servers, *case.workers], pick)
        self.doing: dict[str, tuple[str, int]] = {}
        self.sent_before: dict[str, int] = {}
        self.begun: dict[tuple[int, int], set[int]] = {}  # (round, key) → the workers that have begun to push
        self.round = dict.fromkeys(range(case.n), 0)

    def play(self) -> None:
        case, net = self.case, self.net
        programs = {name: self._server(name) for name in case.servers}
        programs |= {name: self._worker(i, name) for i, name in enumerate(case.workers)}
        try:
            net.play(programs, until=case.workers)
        except Idle as error:
            raise failure("endless", "node-endless", case, node=error.node) from None
        except Deadlock:
            raise self._stuck() from None

    # ---- the nodes

    def _functions(self, name: str) -> tuple[Callable, Callable, Callable]:
        """(push, pull, serve) of one node, which shares nothing with the others."""
        case, net = self.case, self.net
        send, recv = functools.partial(self._send, name), functools.partial(net.recv, name)
        three = call(case, self.answer, list(case.workers), list(case.servers), send, recv)
        if not isinstance(three, tuple | list) or len(three) != 3 or not all(map(callable, three)):
            raise failure("wrong-type", "not-three", case, type=type(three).__name__)
        return tuple(three)

    def _send(self, src: str, to: object, message: object) -> None:
        case, net = self.case, self.net
        goals = case.servers if src in case.workers else case.workers
        if not isinstance(to, str) or to not in goals:
            net.refuse(failure("differs", "wrong-way", case, src=src, dst=repr(to)))
        if sum(each.src == src for each in net.messages) >= self._most_messages(src):
            net.refuse(self._counted("too-many-bytes", "many-messages", src, enough=self._most_messages(src)))
        try:
            net.send(src, to, message)
        except Unsendable as error:
            net.refuse(failure("differs", "unsendable", case, src=src, type=error))

    def _server(self, name: str) -> Callable[[], None]:
        def program():
            _, _, serve = self._functions(name)
            call(self.case, serve, none=True)

        return program

    def _worker(self, i: int, name: str) -> Callable[[], None]:
        def program():
            push, pull, _ = self._functions(name)
            for round_ in range(ROUNDS):
                self.round[i] = round_
                keys = [(key + i) % KEYS for key in range(KEYS)]
                if round_ == 1:  # key by key, all in the same order
                    acts = [(each, key) for key in range(KEYS) for each in ("push", "pull")]
                else:  # all at once, everyone beginning with another key
                    acts = [(each, key) for each in ("push", "pull") for key in keys]
                for act, key in acts:
                    self.doing[name] = (act, key)
                    self.sent_before[name] = self._sent(name)
                    if act == "push":
                        self._push(i, name, push, round_, key)
                    else:
                        value = call(self.case, pull, key, none=True)
                        self._require_the_sum(i, name, value, round_, key)
            self.doing.pop(name)

        return program

    def _push(self, i: int, name: str, push: Callable, round_: int, key: int) -> None:
        value, at = _value(round_, key, 4**i), (round_, key)
        self.begun.setdefault(at, set()).add(i)
        call(self.case, push, key, value, none=True)
        if not torch.equal(value, _value(round_, key, 4**i)):
            raise failure("differs", "push-changes", self.case, node=name, key=key)

    # ---- faults of pulled values

    def _require_the_sum(self, i: int, name: str, value: object, round_: int, key: int) -> None:
        case, where = self.case, {"node": name, "key": key, "round": round_ + 1}
        if value is None:
            if not self.net.messages:
                raise failure("todo", "nothing-sent", case)
            raise failure("nothing-returned", "nothing-pulled", case, **where)
        if not isinstance(value, torch.Tensor) or value.shape != (ELEMENTS,):
            got = f"{tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise failure("wrong-type", "not-the-value", case, got=got, shape=f"({ELEMENTS},)", **where)
        right = _value(round_, key, sum(4**j for j in range(case.n)))
        if torch.equal(value.detach().cpu().float(), right):
            return
        raise self._wrong(value.detach().cpu().double(), right, round_, key, where)

    def _wrong(
        self, value: torch.Tensor, right: torch.Tensor, round_: int, key: int, where: Mapping[str, object]
    ) -> Failure:
        case, own = self.case, _slot(round_, key)
        at = [int(e) for e in torch.nonzero(value != right).flatten()]
        for e in at:
            other, theirs = divmod(e % (ROUNDS * KEYS), KEYS)
            if e % (ROUNDS * KEYS) != own and theirs == key:
                return failure("old-round", "old-round", case, other=other + 1, **where)
            if e % (ROUNDS * KEYS) != own:
                return failure("differs", "other-key", case, other=theirs, **where)
        got = float(value[at[0]])
        counts = decode(got, case.n)
        if counts is None or got * case.n == right[at[0]] > 0:  # a mean may look like a sum of powers
            shown = unlike(got, float(right[at[0]]), digits=6)
            return failure("differs", "wrong-sum", case, got=shown[0], right=shown[1], **where)
        for j, times in enumerate(counts):
            if times > 1:
                return failure("differs", "worker-counted", case, worker=j, times=times, **where)
        missing = [j for j, times in enumerate(counts) if not times]
        mistake = "differs" if set(missing) <= self.begun.get((round_, key), set()) else "too-early"
        return failure(mistake, "workers-missing", case, workers=" ".join(case.workers[j] for j in missing), **where)

    # ---- who waits for what

    def _stuck(self) -> Failure:
        case, net = self.case, self.net
        form = {"push": "push({}, …)", "pull": "pull({})"}
        waits = " · ".join(
            text("checks.waits-in", node=name, call=form[act].format(key)) for name, (act, key) in self.doing.items()
        )
        ended = [name for name in case.servers if name in net.done]
        if ended and any(net.inbox[name] for name in ended):
            return failure("differs", "serve-ended", case, node=ended[0], waits=waits)
        return failure(self._deadlock(), "deadlock", case, waits=waits)

    def _deadlock(self) -> str:
        case = self.case
        stuck = [(name, *self.doing[name]) for name in case.workers if name in self.doing]
        if any(self._sent(name) == self.sent_before[name] for name, _, _ in stuck):
            return "differs"  # a worker waits before it has sent anything
        if any(act == "push" for _, act, _ in stuck):
            return "push-waits"
        ahead = any(self.begun.get((self.round[case.workers.index(name)] + 1, key)) for name, _, key in stuck)
        return "overtaken" if ahead else "no-answer"

    # ---- bytes and messages

    def _sent(self, name: str) -> int:
        return sum(each.src == name for each in self.net.messages)

    def _most_messages(self, name: str) -> int:
        """Messages: for each push and each pull one to each server that has part of the key, and one back."""
        pairs = 2 * KEYS * ROUNDS * self.case.k
        return pairs if name in self.case.workers else pairs * self.case.n

    def count(self) -> None:
        """The bytes of a run whose sums are right; raises Failure."""
        case, messages = self.case, self.net.messages
        payload = KEYS * ROUNDS * NBYTES
        for each in messages:
            if each.nbytes > 2 * NBYTES + HEADER:  # twice as much may be one value, as a list of numbers
                sizes = _sizes(each.nbytes, NBYTES)
                raise self._counted("too-many-bytes", "large-message", each.src, dst=each.dst, **sizes)
        for name in case.workers:
            for key, place in (("sends-bytes", 0), ("gets-bytes", 1)):
                own = [each for each in messages if each[place] == name]
                got = sum(each.nbytes for each in own)
                if got > payload + HEADER * len(own):
                    raise self._counted("too-many-bytes", key, name, **_sizes(got, payload))
                if got < payload:
                    raise self._counted("differs", "too-few-bytes", name, **_sizes(got, payload))
        for name in case.servers:
            if not any(each.dst == name and each.nbytes > HEADER for each in messages):
                raise self._counted("one-server", "idle-server", case.workers[0], idle=name)
        for name in case.servers:
            own = [each.nbytes for each in messages if each.dst == name]
            even = payload * case.n / case.k
            if sum(own) > UNEVEN * even + HEADER * len(own):
                raise self._counted("differs", "uneven-servers", name, **_sizes(sum(own), round(even)))

    def _counted(self, mistake: str, sentence: str, node: str, **values: object) -> Failure:
        """The Failure, with a line for each pair that ``node`` is one of."""
        counted = failure(mistake, sentence, self.case, node=node, **values)
        counted.sentence = "\n".join([counted.sentence, *pair_lines(self.net.messages, node)])
        return counted


def pair_lines(messages: Sequence[Message], node: str) -> list[str]:
    """Return the messages from and to ``node``: a line for each pair, ``worker0 → server0: 36 messages, 77.76 kB``."""
    pairs: dict[tuple[str, str], list[int]] = {}
    for src, dst, nbytes in messages:
        if node in (src, dst):
            pairs.setdefault((src, dst), []).append(nbytes)
    return [
        text("checks.who-sent", src=src, dst=dst, count=len(each), size=size_text(sum(each)))
        for (src, dst), each in sorted(pairs.items(), key=lambda item: item[0][0] != node)
    ]


def traffic(messages: Sequence[Message]) -> dict[str, str]:
    """Return the values for the sentence to a right answer: the bytes of one worker and the number of its messages."""
    sent, got = ([each.nbytes for each in messages if each[place] == "worker0"] for place in (0, 1))
    return {
        "pushes": str(KEYS * ROUNDS),
        "value": size_text(NBYTES),
        "payload": size_text(KEYS * ROUNDS * NBYTES),
        "sent": size_text(sum(sent)),
        "got": size_text(sum(got)),
        "messages": str(len(sent) + len(got)),
    }


def _slot(round_: int, key: int) -> int:
    return round_ * KEYS + key


def _value(round_: int, key: int, number: int):
    value = torch.zeros(ELEMENTS)
    value[_slot(round_, key) :: ROUNDS * KEYS] = number
    return value


def _sizes(got: int, enough: int) -> dict[str, str]:
    return dict(zip(("got", "enough"), unlike(got, enough, size_text), strict=True))
