"""An answer's process: what it may do to this machine, on a kernel with all protections and on an older one."""

import ast
import os
import resource
import select
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from itertools import repeat
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from helpers.classes import notebook, solving
from helpers.confined import KERNELS, LIMITS, TRIES, Victim, confined
from helpers.ranks import FORKED
from helpers.waits import LIVE

from course.classes import allowed, judging, running
from course.classes.allowed import ABSENT, ALLOW, AND, EQUAL, KILL, LOAD, MACHINES, REFUSED, RETURN, program, table
from course.classes.handed_in import Task
from course.classes.judging import Limits
from course.classes.line import Gone

FIRST = "01-data-parallelism"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can confine a process so")


@pytest.fixture(scope="module", params=KERNELS)
def tried(request, tmp_path_factory):
    """Return what a confined process could do, and the victim of its attempts, with all that has reached it."""
    folder = tmp_path_factory.mktemp("victim")
    (folder / "library").mkdir()
    for name in ("precious", "library/a.py"):
        (folder / name).write_text("as before")
    sockets = []
    names = [str(folder / "socket"), f"\0d2-{os.getpid()}-{request.param}"]
    for name in names:
        sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        sockets[-1].bind(name)
        sockets[-1].setblocking(False)
    process = subprocess.Popen(["sleep", "99"])
    resource.prlimit(process.pid, resource.RLIMIT_CPU, LIMITS)
    places = os.sched_getaffinity(process.pid)
    victim = Victim(process.pid, str(folder / "precious"), names[0], names[1][1:], names[1][1:] + "-free")
    try:
        found = confined(request.param, victim)
        if found["missing"]:
            pytest.skip(f"this machine cannot refuse {found['missing']}")
        yield found, victim, sockets, places
    finally:
        process.kill(), process.wait()
        for each in sockets:
            each.close()


@pytest.mark.parametrize("name", TRIES)
def test_attempt_to_reach_another_process_or_file_is_refused(tried, name):
    assert tried[0]["refused"][name] in ("EPERM", "EACCES", "ESRCH", "EXDEV")


@pytest.mark.parametrize("name", ["TIOCSTI", "core scheduling", "outlive the keeper", "thread in a new namespace"])
def test_arguments_are_refused_before_the_kernel_looks_at_them(tried, name):
    assert tried[0]["refused"][name] == "EPERM"


def test_victim_is_unharmed(tried):
    _, victim, sockets, places = tried
    process = psutil.Process(victim.process)
    assert process.status() != psutil.STATUS_ZOMBIE and process.nice() == psutil.Process().nice()
    assert resource.prlimit(victim.process, resource.RLIMIT_CPU) == LIMITS
    assert os.sched_getaffinity(victim.process) == places
    for each in sockets:
        with pytest.raises(BlockingIOError):
            each.recv(99)
    with socket.socket(socket.AF_UNIX) as mine:
        mine.bind("\0" + victim.free)
    folder = os.path.dirname(victim.file)
    assert sorted(os.listdir(folder)) == ["library", "precious", "socket"]
    for name in ("precious", "library/a.py"):
        with open(os.path.join(folder, name)) as file:
            assert file.read() == "as before"


def test_right_answers_can_work(tried):
    assert tried[0]["work"] == "['slept'] b'x'"


@pytest.mark.parametrize(
    "without, missing", [("landlock", ["files"]), ("seccomp", ["processes", "network"])], ids=lambda value: str(value)
)
def test_protection_that_a_kernel_lacks_is_named(tmp_path, without, missing):
    nothing = Victim(0, str(tmp_path / "x"), "", "", "")
    assert confined("older", nothing, (without,))["missing"] == missing


# ---- the judge


class Short(Limits):
    """Limits of which a judge reaches that of its processor time soon."""

    quiet = 1


def endless(*_) -> None:
    while True:
        pass


def endless_in_c(*_) -> None:
    """No other thread runs meanwhile, and no handler of a signal."""
    deque(repeat(0), maxlen=0)


def greedy(*_) -> None:
    with pytest.raises(MemoryError):
        bytearray(3 << 30)
    raise Gone("strange")


def judge_of(how, path, pipe) -> None:
    """Judge a notebook in a process as small as the grader is, and send whether it ended by itself, and the result."""
    judging.attempts.judged, judging._loaded = how, lambda *_: None
    limits, forkservers = Short(memory=1 << 28), SimpleNamespace(language="en")
    judge, data = running.Judging(Task("anh", path, name="1.ipynb"), forkservers, limits), b"at first"
    while data and select.select([judge.end], [], [], LIVE)[0]:
        data = os.read(judge.end, 1 << 20)
        judge.data += data
    judge.stop()
    pipe.send((not data, judge.result()))


@pytest.mark.parametrize("how, mistake", [(endless, "judge"), (endless_in_c, None), (greedy, "strange")])
def test_judge_has_limits_of_its_own(tmp_path, how, mistake):
    """The answer is stopped, or the judge ends by itself and its notebook has no verdict."""
    (path := tmp_path / "1.ipynb").write_text(nbformat.writes(notebook(FIRST, {"split": solving("split")})))
    ours, theirs = FORKED.Pipe()
    process = FORKED.Process(target=judge_of, args=(how, path, theirs))
    process.start()
    theirs.close()
    ended, result = ours.recv()
    process.join(LIVE)
    assert ended
    found = {row["exercise"]: (row["state"], row["mistake"]) for row in result["rows"]}
    assert found.get("split") == (mistake and ("stopped", mistake)) and bool(result["book"]["notes"]) == (not mistake)


def test_answer_is_overtime_only_if_the_kernel_has_killed_it_for_its_time():
    """A busy machine's kernel kills at half of the limit, too: here the judge believes that two seconds are allowed."""
    answers = {
        "while True: pass": (True, False),
        "import time\nwhile time.process_time() < 0.6: pass": (False, True),
        "import os, time\nwhile time.process_time() < 0.6: pass\nos._exit(0)": (False, False),
    }
    forkservers = judging.ForkServers("en", Limits(seconds=1), [])
    try:
        for source, expected in answers.items():
            source, loaded = f"{source}\nanswer = None", False
            cells = [("In 1", source, [*range(len(ast.parse(source).body))])]
            with suppress(Gone), judging.Running(forkservers, cells, "answer", Limits(seconds=2)) as answer:
                loaded = answer.start().answer is None
            assert (answer.overtime, loaded) == expected, source
    finally:
        forkservers.end()


def test_forkserver_says_nothing_if_the_grader_has_ended():
    grader, end = socket.socketpair()
    grader.close()
    command = [sys.executable, "-m", "course.classes.forkserver", "{}"]
    done = subprocess.run(command, stdin=end, capture_output=True, text=True, timeout=120)
    end.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- the filter, for machines that are not this one, too


def decision(steps, machine: str, number: int, arguments: tuple) -> int:
    """Run a filter as the kernel does."""
    words = {0: number, 4: MACHINES[machine]}
    for at, argument in enumerate((*arguments, *[0] * 6)[:6]):
        words |= {16 + 8 * at: argument & 0xFFFFFFFF, 20 + 8 * at: argument >> 32 & 0xFFFFFFFF}
    at, word = 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        if code == LOAD:
            word = words[value]
        elif code == AND:
            word &= value
        elif code == EQUAL:
            at += yes if word == value else no
        else:
            assert code == RETURN
            return value


ME = os.getpid()
THREAD = 0x3D0F00  # what the C library gives to clone for a thread
DECIDED = {
    "tgkill": ([(ME, 5, 9)], [(ME + 1, 5, 9), (1,), (0,)]),
    "fcntl": ([(3, 1), (3, 4, 0x800), (3, 1030)], [(3, 8), (3, 10), (3, 15), (3, 6), (3, 1024), (3, 1026)]),
    "ioctl": ([(3, 0x5421), (0, 0x5401)], [(3, 0x8901), (3, 0x8902), (0, 0x5412), (0, 0x5410), (3, 0x8914)]),
    "prlimit64": ([(0, 7), (ME, 7)], [(ME + 1, 7)]),
    "sched_setaffinity": ([(0,), (ME,)], [(ME + 1,)]),
    "prctl": ([(15,), (0x53564D41,)], [(1,), (62,), (22,), (35,), (4,)]),
    "clone": ([(THREAD,)], [(17,), (0x4011,), (THREAD | 0x40000000,), (THREAD | 0x10000000,), (0x20000,)]),
    "socketpair": ([(1, 1), (1, 0x80801)], [(1, 2), (1, 5), (1, 3), (2, 1), (16, 1)]),
    "openat": ([(0, 0, 0), (0, 0, 0x80241), (0, 0, 2)], [(0, 0, 0x200), (0, 0, 0x203), (0, 0, 3), (0, 0, 0x80200)]),
}
NETWORK = {
    "socket": [(2, 1), (10, 0x80801, 6), (2, 2, 17)],
    "bind": [(3,)],
    "connect": [(3,)],
    "sendto": [(3, 0, 0, 0, 0x7FFF00000000)],
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("network", [True, False])
def test_filter_allows_and_refuses_by_arguments(machine, network):
    calls, steps = table(machine), program(machine, network)
    assert len(steps) <= 4096, "the kernel takes no longer filter"

    def decide(name: str, arguments: tuple) -> int:
        return decision(steps, machine, calls[name][0], arguments)

    for name, (fine, bad) in DECIDED.items():
        assert {decide(name, arguments) for arguments in fine} == {ALLOW}, name
        assert {decide(name, arguments) for arguments in bad} == {REFUSED}, name
    for name, arguments in NETWORK.items():
        assert {decide(name, each) for each in arguments} == {ALLOW if network else REFUSED}, name
    for arguments in [(1, 1), (16, 3), (17, 3), (2, 3), (2, 1, 132), (2, 0x5, 0)]:
        assert decide("socket", arguments) == REFUSED
    assert decide("sendto", (3, 0, 9)) == ALLOW and decide("clone3", ()) == ABSENT
    checked = {*DECIDED, *NETWORK, "open", "accept", "accept4", "listen", "clone3"}
    assert {name for name, (_, rule) in calls.items() if rule != "any"} == checked & calls.keys()
    assert all(decide(name, (7,) * 6) == ALLOW for name in calls.keys() - checked)
    absent = {*range(1000)} - {number for number, _ in calls.values()}
    assert {decision(steps, machine, number, ()) for number in absent} == {REFUSED}
    assert decision(steps, machine, calls["read"][0] | 0x40000000, ()) == REFUSED, "a call of the x32 ABI"
    (other,) = MACHINES.keys() - {machine}
    assert decision(steps, other, calls["read"][0], ()) == KILL


def test_every_call_says_what_its_arguments_may_be():
    lines = allowed.CALLS.strip().splitlines()
    names = [line.split()[0] for line in lines]
    assert len({*names}) == len(names) > 100 and all(line.split(maxsplit=3)[3:] for line in lines)
