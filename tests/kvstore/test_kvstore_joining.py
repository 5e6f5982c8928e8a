"""Workers meet to make a store: all others name a missing one before the deadline."""

import re
import subprocess
import sys
import textwrap

import pytest
from helpers import breaking
from helpers.scripts import forked

from d2lps import kvstore
from d2lps.carriers.rendezvous import Rendezvous
from d2lps.kvstore import Refused
from d2lps.kvstore.launch import Meeting

nothing_left = breaking.nothing_left
pytestmark = pytest.mark.usefixtures("nothing_left")

SCRIPT = """
import os, signal, time
from d2lps import kvstore
from d2lps.kvstore import launch

end, start = lambda *_: os.kill(os.getpid(), {signal}), launch._start_servers
if os.environ["RANK"] == "1":
    {where} = {how}
begin = time.monotonic()
try:
    with kvstore.create("dist_sync", servers=2, {options}):
        print("it was made")
except kvstore.KVError as error:
    print(type(error).__name__, getattr(error, "ranks", ()), error)
print(time.monotonic() - begin, flush=True)
"""
PHASES = {  # where worker 1 ends, what it does there, and the seconds that the others have
    "before they meet": ("launch.meet", "end", "deadline=2.0, joining=2.0", 2.0),
    "when all are there": ("launch._start_servers", "end", "deadline=30.0", 0.0),
    "when its servers listen": (
        "launch._start_servers",
        "lambda *told: (start(*told), end())",
        "deadline=2.0, joining=60.0",
        0.0,
    ),
}


def made(folder, where, how, options, number=9):
    """Return the outputs of three workers, and the seconds of each."""
    script = folder / "work.py"
    script.write_text(textwrap.dedent(SCRIPT).format(where=where, how=how, options=options, signal=number))
    return [(lines[0], float(lines[1])) if len(lines) > 1 else None for lines in forked(script, 3)]


@pytest.mark.fault("F1", "worker process killed as the store is made")
@pytest.mark.parametrize("phase", PHASES)
def test_a_worker_that_is_killed_as_the_store_is_made_is_named_by_all(tmp_path, phase):
    *how, seconds = PHASES[phase]
    first, second, third = made(tmp_path, *how)
    assert second is None
    for said, took in (first, third):
        assert re.match(r"WorkerLost \(1,\) rank 1 (died|gave no sign of life for 2 s)", said), said
        assert took < seconds + 20, "it was to be heard of long before the deadline"


@pytest.mark.fault("F3", "a worker that is stopped as the store is made")
def test_nobody_waits_longer_than_for_joining(tmp_path):
    first, _, third = made(tmp_path, "launch._start_servers", "lambda *_: (time.sleep(15), end())", "joining=3.0")
    for said, took in (first, third):
        assert said.startswith("WorkerLost (1,) rank 1 gave no sign of life") and took < 14, (said, took)


def test_a_worker_that_ended_early_counts_as_ended(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    meeting = Meeting.__new__(Meeting)
    meeting.rank, meeting._others, meeting._dead = 0, {}, set()
    monkeypatch.setattr(Rendezvous, "join", lambda _, me: [me, {"process": [*me["process"][:-1], process.pid]}])
    meeting.join({})
    assert meeting.ended() == {1}


@pytest.mark.parametrize("joining", [0, -1.0, float("nan"), float("inf"), "30", True])
def test_joining_is_a_number_of_seconds(joining):
    with pytest.raises(Refused, match="joining = .*: give a number of seconds, more than 0"):
        kvstore.create("dist_sync", joining=joining)
