"""Judge a pair of servers: crash, pause and disturb them at every message in turn, and look at what workers are told.

What a worker is told must be the very bits that one server would have computed, and every worker must be told
everything. The schedules are played from small to large, so the first that fails is a small one; where it fails, and
how, names the mistake.
"""

import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import product

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, shared_names, size_kept, size_text

from .pair import MOMENTUM, RATE, ROUNDS, SERVERS, TALK, Letter, PairCase, Schedule, World, gradient, trained

MANY_KEYS = tuple(f"w{i}" for i in range(8))  # with so many it is seen whether everything is copied again and again
LONG = (100, 300)  # rounds after which it is measured what a server keeps
SLACK = 1000  # bytes by which that may grow in between: 200 numbers take more
SMALL, LARGE = 200, 400  # runs with one failure in the later cases, and with two in the first
REPEATS = 300  # of all pushes, while the servers cannot hear each other
SHOWN = 8  # messages that are told before the one at which a mistake was seen


def judge(case: PairCase, answer: Callable) -> dict[str, str]:
    """How many runs a right answer has taken, and how much it has said; raises Failure."""
    world = _fault_free(case, answer)
    runs = 1
    single = list(small_schedules(world.letters, case.servers))
    for schedule in single if case.n > 2 else some(single, SMALL):
        play(case, answer, schedule)
        runs += 1
    _require_few_numbers(case, answer)
    for after in (0, case.n + 1):  # cut off in the first or second round, and asked again and again
        schedule = Schedule(server=case.servers[0], after=after, how="cut", repeats=REPEATS)
        play(replace(case, keys=case.keys[:1], rounds=LONG[0]), answer, schedule)
        runs += 1
    _require_little_kept(case, answer)
    for schedule in some(large_schedules(world.letters, case.servers), LARGE) if case.n > 2 else ():
        play(case, answer, schedule)
        runs += 1
    between = [letter for letter in world.letters if letter.src in case.servers and letter.dst in case.servers]
    return {"runs": str(runs), "messages": str(len(world.letters)), "between": str(len(between))}


def play(case: PairCase, answer: Callable, schedule: Schedule) -> World:
    """Raises Failure, with its schedule and the last messages in the sentence."""
    world = World(case, answer, schedule, _check)
    world.run()
    found = world.failed or _unanswered(world) or _asked_again(world)
    if found:
        raise found
    return world


def small_schedules(letters: list[Letter], servers: tuple[str, str]) -> Iterator[Schedule]:
    """One thing goes wrong, given the messages of a run in which nothing does."""
    every = range(1, len(letters) + 1)
    yield from (Schedule(at, happens) for happens in ("twice", "again", "lost", "late") for at in every)
    first, second = _ends(letters, servers)
    yield from (Schedule(server=servers[1], after=after, how=how) for how in ("lost", "late") for after in second)
    for how, knows in product(("lost", "late", "paused", "cut"), ("", "server", "worker", "again")):
        yield from (Schedule(server=servers[0], after=after, how=how, knows=knows) for after in first)


def large_schedules(letters: list[Letter], servers: tuple[str, str]) -> Iterator[Schedule]:
    """The primary crashes, and before that something has happened to a message."""
    between = [letter.number for letter in letters if {letter.src, letter.dst} == {*servers}]
    pushes = [letter.number for letter in letters if letter.src not in servers]
    stale = [(happens, answers, between) for happens in ("again", "late") for answers in (1, 2, 3)]
    for happens, answers, those in (*stale, ("lost", 0, between), ("again", 0, pushes)):
        for at in those:
            before = sum(letter.src == servers[0] for letter in letters[: at - 1])
            ends = _ends(letters, servers)[0][before:]
            yield from (Schedule(at, happens, answers, servers[0], after) for after in ends)


def some(those: Iterator, most: int) -> list:
    """These, or so many of them in their order, drawn: else an answer that sends much takes too long.

    >>> some(range(9), 9) == [*range(9)], len(some(range(1000), 9))
    (True, 9)
    """
    those = list(those)
    drawn = sorted(random.Random(most).sample(range(len(those)), min(most, len(those))))
    return [those[i] for i in drawn]


def _ends(letters: list[Letter], servers: tuple[str, str]) -> list[range]:
    """After how many of its messages each server may fail."""
    return [range(sum(letter.src == server for letter in letters) + 1) for server in servers]


# What a server says.


def _check(world: World, src: str, dst: Hashable, message: object) -> tuple | None:
    """The message as it travels, or None where it makes the run fail."""
    case = world.case
    talk = TALK * max(1, case.rounds // 100, world.schedule.repeats // 100)
    if world.spoken > talk:
        world.failed = _failure("talks-for-ever", "pair-talks", world, messages=talk)
    elif dst not in case.workers and (dst == src or dst not in case.servers):
        world.failed = failure("strange-receiver", "pair-receiver", case, server=src, to=repr(dst)[:40])
    elif not isinstance(message, tuple):
        world.failed = failure("not-a-message", "pair-not-tuple", case, server=src, type=type(message).__name__)
    elif dst in case.servers:
        try:
            return plain(message)
        except TypeError as error:
            world.failed = failure("not-plain", "pair-not-plain", case, server=src, type=str(error))
    elif len(message) != 5 or message[0] != "value" or message[2] not in case.keys or not _is_number(message[4]):
        world.failed = failure("not-a-message", "pair-not-value", case, server=src, message=repr(message)[:80])
    else:
        world.failed = _of_value(world, src, dst, *message[1:])
    return message if world.failed is None else None


DATA = frozenset({int, float, str, bool, type(None)})


def plain(thing: object) -> object:
    """A copy that shares nothing with the original; raises TypeError, with the type's name, for what is not data.

    >>> plain(("copy", {"w": [1, 2.5]}))
    ('copy', {'w': [1, 2.5]})
    """
    if type(thing) in DATA or isinstance(thing, int | float | str):
        return thing
    # What is usual is looked at here: a judge copies a million messages.
    if isinstance(thing, tuple | list | set | frozenset):
        return type(thing)([each if type(each) in DATA else plain(each) for each in thing])
    if isinstance(thing, dict):
        return {
            key if type(key) in DATA else plain(key): value if type(value) in DATA else plain(value)
            for key, value in thing.items()
        }
    raise TypeError(type(thing).__name__)


def numbers_in(thing: object) -> list[float]:
    """The numbers with a point in a message.

    >>> numbers_in(("copy", 1, {"w": (2, 0.5, -0.5)}))
    [0.5, -0.5]
    """
    if isinstance(thing, dict):
        return numbers_in(tuple(thing.values()))
    if isinstance(thing, tuple | list | set | frozenset):
        return [number for each in thing for number in numbers_in(each)]
    return [thing] if isinstance(thing, float) else []


def _is_number(thing: object) -> bool:
    return isinstance(thing, int | float)


def _of_value(world: World, src: str, dst: int, view: int, key: str, number: int, weights: float) -> Failure | None:
    """What is wrong with telling a worker these weights."""
    case, values = world.case, {"server": src, "worker": dst, "key": key, "number": number, "view": view}
    if src not in world.views.get(view, ()):
        mistake = "alone-unasked" if view not in world.views else "zombie"
        return _failure(mistake, f"pair-{mistake}", world, **values)
    if not (isinstance(number, int) and 1 <= number <= case.rounds):
        return failure("not-a-message", "pair-not-value", case, server=src, message=repr(("value", view, key, number)))
    right = trained(case.workers, key, number)[0]
    if weights == right:
        return None
    values |= {"got": f"{weights:.6g}", "right": f"{right:.6g}"}
    near = abs(weights - right) < 1e-9
    if near:
        return _failure("arrival-order", "pair-bits", world, **values)
    found, told = _diagnosed(case.workers, key, number, weights)
    sentence = _failure(_mistake_of_value(world, found), "pair-weights", world, **values)
    if told:
        first, *rest = sentence.sentence.split("\n")
        sentence.sentence = "\n".join([_one_after_the_other([first, told]), *rest])
    return sentence


WAYS = ("once", "missing", "twice", "older", "older-too")


def _diagnosed(workers: tuple[int, ...], key: str, number: int, weights: float) -> tuple[str, str]:
    """What a server has done to come to these weights: its name, and a sentence."""
    old, velocity = trained(workers, key, number - 1)
    same, moving = trained(workers, key, number)

    def total(base: float, speed: float) -> float:
        return (base - weights) / RATE - MOMENTUM * speed

    if any(abs(weights - trained(workers, key, other)[0]) < 1e-9 for other in range(1, ROUNDS + 1)):
        other = next(other for other in range(1, ROUNDS + 1) if abs(weights - trained(workers, key, other)[0]) < 1e-9)
        return "other-round", text("checks.pair-is-other-round", other=other)
    now = [gradient(worker, key, number) for worker in workers]
    before = [gradient(worker, key, number - 1) if number > 1 else 0.0 for worker in workers]
    if number > 1 and abs(total(old, 0.0) - sum(now)) < 1e-6:
        return "no-velocity", text("checks.pair-no-velocity")
    if abs(total(same, moving) - sum(now)) < 1e-6:
        return "round-twice", text("checks.pair-round-twice", number=number)
    if number > 1 and abs(total(old, velocity) - sum(before)) < 1e-6:
        return "older", text("checks.pair-round-older", other=number - 1)
    # What each way counts of worker i: nothing, its gradient, twice that, the one before, or both.
    parts = {"missing": (0, 0), "once": (1, 0), "twice": (2, 0), "older": (0, 1), "older-too": (1, 1)}
    for ways in list(product(WAYS, repeat=len(workers)))[1:]:  # the first one is right
        counted = sum(parts[way][0] * now[i] + parts[way][1] * before[i] for i, way in enumerate(ways))
        if abs(total(old, velocity) - counted) < 1e-6:
            odd = next(way for way in ways if way != "once")
            who = " ".join(str(worker) for worker, way in zip(workers, ways, strict=True) if way == odd)
            return odd, text(f"checks.pair-counts-{odd}", workers=who, other=number - 1)
    return "", ""


def _mistake_of_value(world: World, found: str) -> str:
    """Which mistake makes a server count so, in such a run."""
    schedule = world.schedule
    if schedule == Schedule():
        return "no-momentum" if found == "no-velocity" else "wrong-weights"
    if not schedule.server:
        if schedule.happens == "twice":
            return "counts-twice"
        return "dedupe-by-message" if schedule.happens in ("lost", "again", "late") else "wrong-weights"
    if found == "no-velocity":
        return "optimizer-lost"
    if schedule.happens and _between(world):
        return "gap"
    if schedule.how == "late" or schedule.knows == "again":
        return "old-view-taken"
    return "forgets-who-counted" if found in ("", "round-twice", "other-round") else "half-round-kept"


def _between(world: World) -> bool:
    """Whether the message to which something happens is one between the servers."""
    letter = world.letters[world.schedule.message - 1]
    return {letter.src, letter.dst} == {*world.case.servers}


# What a worker is not told.


def _unanswered(world: World) -> Failure | None:
    if not world.unanswered:
        return None
    worker, key, number = min(world.unanswered, key=lambda each: each[2])
    values = {"worker": worker, "key": key, "number": number}
    first, second = world.case.servers
    schedule, told = world.schedule, [letter for letter in world.letters if _tells(letter, key)]
    if schedule == Schedule():
        if all(letter.src not in world.case.servers for letter in world.letters):
            unlike = world.case.servers != SERVERS  # the name does not tell who is the primary
            mistake = "todo" if _untouched(world) else "never-takes-over" if unlike else "nobody-answers"
            return failure(mistake, "pair-silent", world.case)
        return _failure("nobody-answers", "pair-waits", world, **values)
    if not schedule.server:
        mistake = "counts-twice" if schedule.happens in ("twice", "again") else "sends-once"
        mistake = mistake if _between(world) or mistake == "counts-twice" else "nobody-answers"
        return _failure(mistake, "pair-waits", world, **values)
    if schedule.server == second:
        return _failure("waits-for-the-dead", "pair-waits", world, **values)
    alone = [letter for letter in told if letter.src == first and letter.message[1] == 1]
    for letter in alone:
        if mistake := _too_early(world, letter):
            others = " ".join(map(str, sorted({each.dst for each in alone if each.message == letter.message})))
            values |= {"others": others, "server": second, "lost": letter.message[3]}
            return _failure(mistake, "pair-lost", world, **values)
    if schedule.happens and _between(world):
        return _failure("gap", "pair-waits", world, **values)
    if schedule.how == "late" or schedule.knows == "again":
        return _failure("old-view-taken", "pair-waits", world, **values)
    if any(letter.message[3] == number for letter in alone):
        mistake = "nobody-answers" if schedule.how == "lost" else "old-view-taken"
        return _failure(mistake, "pair-waits", world, **values)
    return _failure("forgets-who-counted" if number > 1 else "never-takes-over", "pair-waits", world, **values)


def _tells(letter: Letter, key: str) -> bool:
    return letter.message[:1] == ("value",) and letter.message[2:3] == (key,) and isinstance(letter.dst, int)


def _too_early(world: World, told: Letter) -> str | None:
    """The mistake if the first primary tells weights that the backup need not have, else None.

    The backup has them if it was told something after the round was complete; the primary knows that if it has heard
    from the backup because of that.
    """
    key, number = told.message[2:4]
    first, second = world.case.servers
    pushes = [each for each in world.letters if each.dst == first and each.message[3:5] == (key, number)]
    arrived = [each for each in pushes if each.arrived is not None and each.arrived <= told.sent]
    complete = max(min(each.arrived for each in arrived if each.src == i) for i in {each.src for each in arrived})
    answer = told.because
    if answer is not None and answer.src == second:
        return "any-ack" if answer.because is None or answer.because.sent < complete else None
    if any(each.src == second and each.sent >= complete and each.arrived for each in world.letters[: told.number]):
        return None
    asked = [each for each in arrived if each.src == told.dst]
    return "alone-unasked" if len(asked) > 1 or world.schedule.how == "cut" else "acked-too-early"


def _asked_again(world: World) -> Failure | None:
    """Where nothing is lost, nobody has to say anything twice."""
    if world.times and world.schedule.happens in ("", "twice", "again") and not world.schedule.server:
        return _failure("nobody-answers", "pair-repeats", world)
    return None


def _untouched(world: World) -> bool:
    code = getattr(world.on[world.case.servers[0]], "__code__", None)
    return code is not None and not (code.co_names or code.co_freevars)


def _fault_free(case: PairCase, answer: Callable) -> World:
    """The run in which nothing fails, twice: of the first one nothing may be left, as of servers that have died."""
    one, other = (call(case, answer, *case.servers, list(case.workers), _unheard) for _ in range(2))
    if shared_names(one, other, case.keys):
        raise failure("shared-memory", "pair-shared", case)
    world = play(case, answer, Schedule())
    try:
        play(case, answer, Schedule())
    except Failure:
        raise failure("shared-memory", "pair-shared", case) from None
    return world


def _unheard(to: Hashable, message: tuple) -> None:
    """Where messages go before the first run."""


# What it costs.


def _require_few_numbers(case: PairCase, answer: Callable) -> None:
    """Between the servers no more than all gradients, and a state for each sum."""
    world, sums = play(replace(case, keys=MANY_KEYS), answer, Schedule()), len(MANY_KEYS) * ROUNDS
    got = [number for letter in world.letters if letter.dst == case.servers[1] for number in numbers_in(letter.message)]
    gradients = {letter.message[-1] for letter in world.letters if letter.src in case.workers}
    others = sum(number not in gradients for number in got)
    if others > 2 * sums or len(got) > (case.n + 2) * sums:
        values = {"gradients": len(got) - others, "others": others, "pushes": case.n * sums, "enough": 2 * sums}
        raise failure("copies-everything", "pair-numbers", case, sums=sums, **values)


def _require_little_kept(case: PairCase, answer: Callable) -> None:
    """What a server keeps does not grow with the number of rounds."""
    sizes = []
    for rounds in LONG:
        world = play(replace(case, keys=case.keys[:1], rounds=rounds), answer, Schedule())
        sizes.append({server: size_kept(world.on[server], without=[world]) for server in case.servers})
    for server in case.servers:
        few, many = (each[server] for each in sizes)
        if many > few + SLACK:
            sizes = {"few": size_text(few), "many": size_text(many)}
            raise failure("grows", "pair-grows", case, server=server, first=LONG[0], last=LONG[1], **sizes)


# What is told.


def _failure(mistake: str, sentence: str, world: World, **values: object) -> Failure:
    """The Failure, what failed in this run, and the last messages."""
    told = failure(mistake, sentence, world.case, **values)
    told.sentence += f"\n{text('checks.pair-schedule', schedule=_said(world))}"
    lines, said = [], set()
    for letter in world.letters:
        push = letter.message[:2] + letter.message[3:] if letter.src not in world.case.servers else letter.number
        if letter.arrived is not None and (letter.src, push) not in said:  # what workers only repeat is left out
            said.add((letter.src, push))
            lines.append(f"{letter.src} → {letter.dst}: {shown(letter.message)}")
    told.sentence += "\n" + text("checks.pair-last", messages=" · ".join(lines[-SHOWN:]))
    return told


def shown(message: object) -> str:
    """A message with its numbers cut short.

    >>> shown(("value", 1, "w", 2, -1.23456789))
    "('value', 1, 'w', 2, -1.235)"
    """
    if isinstance(message, float):
        return f"{message:.4g}"
    if isinstance(message, tuple):
        return f"({', '.join(map(shown, message))}{',' * (len(message) == 1)})"
    if isinstance(message, dict):
        return "dict(…)"
    return repr(message)[:80]


def _said(world: World) -> str:
    """The schedule, in the reader's language."""
    schedule, said = world.schedule, []
    if schedule.message and schedule.message <= len(world.letters):
        letter = world.letters[schedule.message - 1]
        values = {"at": letter.number, "src": letter.src, "dst": letter.dst, "message": shown(letter.message)}
        said.append(text(f"checks.pair-message-{schedule.happens}", **values))
    if schedule.server:
        sent = [letter for letter in world.letters if letter.src == schedule.server][: schedule.after]
        what = schedule.how if schedule.how in ("paused", "cut") else "crashes"
        values = {"server": schedule.server}
        if sent:
            values |= {"at": sent[-1].number, "dst": sent[-1].dst, "message": shown(sent[-1].message)}
        said.append(text(f"checks.pair-{what}{'' if sent else '-first'}", **values))
        if schedule.how == "late":
            said.append(text("checks.pair-arrives-late", server=schedule.server))
        if schedule.knows:
            said.append(text(f"checks.pair-{schedule.knows}-last"))
    return _one_after_the_other(said or [text("checks.pair-nothing")])


def _one_after_the_other(sentences: list[str]) -> str:
    return reduce(lambda first, then: text("checks.pair-then", first=first, then=then), sentences)
