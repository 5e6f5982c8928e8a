"""``d2lps.ranks`` and ``%%px``, as a notebook uses them; the same carriers under torchrun; no process stays."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from helpers.notebooks import ByCell
from helpers.waits import LIVE
from nbclient.exceptions import DeadKernelError

import d2lps
from d2lps.carriers.rendezvous import ProcessesError
from d2lps.notebook.ranks import px

ROOT = Path(__file__).parents[2]
START = 'import d2lps\nd2lps.speak("vi")\nranks = d2lps.ranks(4)\nranks'
RING = """%%px
import d2lps, os, torch, torch.distributed as dist, warnings
carrier = d2lps.Processes()
plan = d2lps.ring(carrier.names)
gradient = torch.full((8,), 1.0 + carrier.rank)
trace = d2lps.run(plan, gradient, carrier)
print("rank", carrier.rank)
gradient
"""


def together(group: int) -> list[int]:
    """The processes of a group, dead ones that nobody has fetched not among them."""
    processes = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                processes.append(process.pid)
        except ProcessLookupError:
            continue
    return processes


def gone(group: int, within: float) -> bool:
    until = time.monotonic() + within
    while together(group) and time.monotonic() < until:
        time.sleep(0.05)
    return not together(group)


class Notebook(ByCell):
    """One whose cells are interrupted."""

    def interrupted(self, folder: Path, cell: str) -> str:
        """Return the output of a cell that is interrupted once all ranks wait in it. It ends within 60 s."""
        ranks = [psutil.Process(int(pid)) for pid in re.findall(r" (\d+)", self.says("ranks"))]

        def interrupt() -> None:
            until = time.monotonic() + LIVE / 2
            while (len(list(folder.iterdir())) < 4 or not idle(ranks)) and time.monotonic() < until:
                time.sleep(0.01)
            self.client.km.provisioner.process.send_signal(signal.SIGINT)

        folder.mkdir()
        threading.Thread(target=interrupt).start()
        here = f"import pathlib, time; pathlib.Path({str(folder)!r}, str(carrier.rank)).touch()"
        return self.says(f"%%px\n{here}\n{cell}")


def idle(processes: list[psutil.Process], seconds: float = 0.3) -> bool:
    """Whether none of them does anything for a while."""

    def busy() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = busy()
    time.sleep(seconds)
    return busy() - before < 0.1 * seconds and {process.status() for process in processes} == {psutil.STATUS_SLEEPING}


@pytest.fixture(scope="module")
def notebook():
    """One notebook for all, whose ranks run; at the end it is killed, and they must leave."""
    made = Notebook()
    with made.client.setup_kernel():
        assert re.fullmatch(r"<4 ranks: processes( \d+){4}>", made.says(START))
        made.says(RING)
        yield made
        group = int(made.says("print(d2lps.ranks(4)._guard.pid)"))
        assert len(together(group)) == 7, "a guard, a controller with its heart, four ranks"
        with pytest.raises(DeadKernelError):
            made.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert gone(group, within=LIVE)


def test_a_ring_runs_on_all_ranks_and_rank_0_speaks_first(notebook):
    assert notebook.says(RING).split("\n") == [
        "rank 0",
        "[1] rank 1",
        "[2] rank 2",
        "[3] rank 3",
        "tensor([10., 10., 10., 10., 10., 10., 10., 10.])",
    ]


def test_the_trace_of_rank_0_plays_in_the_notebook_and_from_the_rank(notebook):
    notebook.run("%%px\nshared = d2lps.SharedMemory()\nby_memory = d2lps.run(plan, gradient, shared)")
    for source in 'd2lps.watch(ranks[0]["trace"], ranks[0]["by_memory"])', "%px d2lps.watch(trace, by_memory)":
        (shown,) = notebook.run(source)
        assert "Phát" in shown.data["text/html"] and "<Player: " in shown.data["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" not in shown.data, "it would hang on the rank"
    assert notebook.says('trace = ranks[0]["trace"]; len(trace.events), ranks[3]["by_memory"].measured') == "(24, True)"
    assert notebook.says('ranks[2]["x"] = 7; ranks[2]["x"], ranks[2]') == "(7, <rank 2 of 4>)"


def test_output_shared_by_all_ranks_is_shown_once(notebook):
    assert notebook.says("%%px\nprint('same')\nwarnings.warn('again')\n1 + 1").count("UserWarning: again") == 1
    assert notebook.says("%%px\nprint('same')\n1 + 1") == "same\n2"
    assert (
        notebook.says("%%px\nprint('a\\nb') if carrier.rank > 1 else None\ncarrier.rank == 2")
        == "[2–3]\na\nb\nFalse\n[2] True"
    )
    assert notebook.says("%%px --targets 1:3\ncarrier.rank") == "1\n[2] 2"


def test_an_error_of_all_is_one_sentence_with_its_place_in_the_cell(notebook):
    said = notebook.says("%%px\nx = 1\nd2lps.run(plan, torch.ones(3, 3), carrier)")
    assert re.fullmatch(
        r" +1 x = 1\n-+> 2 d2lps.run\(.*\n\[0–3\] TensorError: tensor của rank0 có dạng \(shape\) .*", said
    )
    assert notebook.says("%%px\ndef f(): g()\nf()").split("\n")[-3:] == [
        "in f()",
        "----> 1 def f(): g()",
        "[0–3] NameError: name 'g' is not defined",
    ]
    assert notebook.says('%%px\nif carrier.rank in (0, 2):\n    raise ValueError(f"of rank {carrier.rank}")').endswith(
        "\n[0, 2] ValueError: of rank 0"
    )
    last = notebook.says("%%px\nx = (").split("\n")[-1]
    assert last.replace("_IncompleteInputError", "SyntaxError") == "[0–3] SyntaxError: incomplete input"  # from 3.13 on


def test_bar_of_ranks_is_text_of_the_first_that_is_cleared_at_the_end(notebook):
    loop = "for each in counted(range(5), of=5):\n    time.sleep(0.8)"
    begin = "import time\nfrom d2lps.messages.counted import counted\nos.environ['D2LPS_PROGRESS'] = '1'"
    outputs = notebook.run(f"%%px\n{begin}\n{loop}")
    assert {output.name for output in outputs} == {"stderr"}
    drawn = "".join(output.text for output in outputs)
    assert "/5 [" in drawn and "[1]" not in drawn and drawn.rpartition("\r")[0].rpartition("\r")[2].strip() == ""
    notebook.run("%px os.environ['D2LPS_PROGRESS'] = '0'")


@pytest.mark.alone
def test_ctrl_c_stops_all_ranks_at_once_and_new_carriers_work(notebook, tmp_path):
    notebook.run(f"from d2lps.notebook.ranks import px; px.LET_GO = {LIVE}")  # others may compute, too
    for waiting in (
        "d2lps.run(plan, gradient, d2lps.Processes(deadline=500)) if carrier.rank else time.sleep(500)",
        "time.sleep(500) if carrier.rank else d2lps.SharedMemory(deadline=500)",
    ):
        said = notebook.interrupted(tmp_path / f"{len(waiting)}", waiting)
        assert said == "KeyboardInterrupt: hãy tạo lại các carrier, trong ô đã tạo chúng"
    notebook.run(f"px.LET_GO = {px.LET_GO}")
    assert notebook.says(RING).startswith("rank 0\n[1] rank 1")


def test_torchs_own_groups_meet_again_and_again(notebook):
    cell = '%%px\ndist.init_process_group("gloo")\ndist.all_reduce(gradient)\ndist.destroy_process_group()\n'
    assert notebook.says(cell) == notebook.says(cell) == ""


@pytest.mark.alone
def test_ranks_asked_for_again_are_the_same_unless_one_is_gone_or_stuck(notebook, tmp_path):
    assert notebook.says("d2lps.ranks(4) is ranks") == "True"
    notebook.run('%%px\ndist.init_process_group("gloo")')
    output = notebook.interrupted(tmp_path / "stuck", "time.sleep(500) if carrier.rank == 3 else dist.barrier()")
    assert output == (
        "KeyboardInterrupt: [0–2] chưa dừng ngay: hãy đợi một lát rồi tạo lại các carrier, trong ô đã tạo chúng"
    )
    output = notebook.says("%px os.kill(os.getpid(), 9) if carrier.rank == 3 else time.sleep(0.1)")
    again = "đã kết thúc: d2lps.ranks(4) khởi động lại tất cả"
    assert output.endswith(f"[3] tiến trình này {again}")
    assert notebook.says("%px 1") == f"ProcessesError: rank 3 {again}"
    assert re.fullmatch(rf"<4 ranks: processes( \d+){{3}}; rank 3 {re.escape(again)}>", notebook.says("ranks"))
    assert notebook.says("d2lps.ranks(4) is ranks, ranks") == "(False, <4 ranks: closed>)"


# ---- without a notebook


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 0}, r"ranks\(0\): give a number of processes, 1 to 64"),
        ({"count": True}, r"ranks\(True\): give"),
        ({"count": 2.0}, r"ranks\(2.0\): give"),
        ({"count": 65}, r"ranks\(65\): give"),
        ({"deadline": 0}, "deadline = 0: give a number of seconds, more than 0"),
        ({"count": 2, "deadline": 0.01}, "2 ranks did not start within 0.01 s"),
    ],
)
def test_invalid_arguments_are_refused(given, sentence):
    before = psutil.Process().children()
    with pytest.raises(ProcessesError, match=sentence):
        d2lps.ranks(**given)
    assert psutil.Process().children() == before


IPV6_ONLY = """
import d2lps

def work():
    import torch
    import torch.distributed as dist

    import d2lps

    carrier = d2lps.Processes(deadline=30)
    mine = torch.full((8,), carrier.rank + 1.0)
    d2lps.run(d2lps.ring(carrier.names), {carrier.names[carrier.rank]: mine}, carrier)
    dist.init_process_group("gloo")
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return mine.unique().tolist()

if __name__ == "__main__":
    with d2lps.ranks(2) as ranks:
        ranks[0]["x"] = 7
        print(ranks[0]["x"], ranks.view.apply_sync(work))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the other systems have no network of its own for a process")
def test_host_with_ipv6_only_has_ranks(tmp_path):
    (script := tmp_path / "ranks.py").write_text(IPV6_ONLY)
    alone = 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", alone, "sh", sys.executable, str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "7 [[6.0], [6.0]]\n", done.stderr


def test_host_without_loopback_is_named(monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    monkeypatch.setattr(socket, "create_server", refused)
    with pytest.raises(ProcessesError, match=r"neither 127.0.0.1 nor ::1 \(Cannot assign requested address\)"):
        d2lps.ranks(1)


def test_without_ipyparallel_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(ProcessesError, match="ranks needs ipyparallel, which is not installed: pip install"):
        d2lps.ranks(1)


def test_a_forked_child_of_the_notebook_does_not_end_the_ranks():
    with d2lps.ranks(1) as ranks:
        if not (child := os.fork()):
            try:
                ranks.close()  # as Python does when the child ends
            finally:
                os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        assert ranks._folder.exists() and ranks.answer(within=LIVE)


def test_closed_ranks_leave_nothing_and_another_count_is_another_start():
    first = d2lps.ranks(1)
    group = first._guard.pid
    with d2lps.ranks(2) as ranks:
        assert first.closed and gone(group, within=0)
        group, folder = ranks._guard.pid, ranks._folder
        with pytest.raises(ProcessesError, match="rank 1, 'nothing': NameError: name 'nothing' is not defined"):
            ranks[1]["nothing"]
        with pytest.raises(ProcessesError, match="there is no rank 2: 2 are running, numbered from 0"):
            ranks[2]
        sockets = [
            found.laddr
            for pid in (os.getpid(), *together(group))
            for found in psutil.Process(pid).net_connections()
            if found.status == psutil.CONN_LISTEN and (pid != os.getpid() or found.laddr.port == ranks._store.port)
        ]
        assert len(sockets) > 10 and {address.ip for address in sockets} == {"127.0.0.1"}, "not the network"
    assert gone(group, within=0) and not folder.exists()
    with pytest.raises(ProcessesError, match=r"the ranks are closed: d2lps.ranks\(2\) starts all of them again"):
        ranks[0]["x"]
