"""The guard process: it loads torch once, and forks the ranks.

    notebook ─── python -m d2lps.notebook.ranks ───┬─── ipyparallel's controller
        └──────────── a pipe ──────────────────────┴─── rank 0, rank 1, …

Only the notebook holds the other end of the pipe. When that closes, because the notebook is done or was killed, the
guard ends and reaps the others; if the guard itself is gone, each of them exits on its own.

ipyparallel's own Cluster is not good enough: 17 processes outlive a notebook that is killed, and each engine loads
torch for itself.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading

from d2lps.notebook.ranks import rank


def main(folder: str, pipe: int, count: int, role: str = "", *further: str) -> None:
    """Guard the controller and ``count`` ranks, which have ``further`` modules loaded; with a role, be one of them."""
    if role:
        return play(role, folder, pipe)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook decides which ranks to interrupt
    started = []
    for role in ("controller", *map(str, range(count))):
        if role == "0":
            rank.load(further)  # while the controller, on another core, gets ready
        if sys.platform != "linux":  # Apple's libraries do not work after a fork
            command = [sys.executable, "-m", "d2lps.notebook.ranks", folder, str(pipe), str(count), role]
            started.append(subprocess.Popen(command, pass_fds=[pipe]).pid)
        elif child := os.fork():
            started.append(child)
        else:
            return play(role, folder, pipe)
    leave_with(pipe, started)
    for _ in started:
        os.wait()
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # and processes that the ranks have started


def leave_with(pipe: int, processes: list[int]) -> None:
    """End these processes, at once, when the notebook's end of the pipe closes."""

    def watch() -> None:
        os.read(pipe, 1)
        for process in processes:
            os.kill(process, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="d2lps guard").start()


def play(role: str, folder: str, pipe: int) -> None:
    """Run the rank of this number, or the controller, which carries the messages between notebook and ranks.

    The controller's heart beats fast, because it accepts a rank only after the first beat; the notebook itself
    notices which ranks are gone.
    """
    leave_with(pipe, [os.getpid()])
    if role != "controller":
        return rank.play(folder, int(role))
    from ipyparallel.controller.app import IPController

    threads = ["IPController.use_threads=True", "IPController.broadcast_scheduler_depth=0"]
    beats = ["HeartMonitor.period=100", "HeartMonitor.max_heartmonitor_misses=1000000"]
    nothing_kept = ["IPController.db_class=nodb", "TaskScheduler.scheme_name=none"]
    address = rank.loopback()
    rank.launch(IPController, folder, f"location={address}", f"ip={address}", *threads, *nothing_kept, *beats)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
