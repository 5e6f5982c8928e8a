"""The same training with the tool used in practice: DistributedDataParallel, one process per device.

``torchrun --local-addr=127.0.0.1 --nproc-per-node=4 -m d2lps.train.ddp weights.pt`` runs :func:`main` in four
processes; :func:`weights` does that from a notebook.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from d2lps.carriers.rendezvous import ProcessesError
from d2lps.messages import text
from d2lps.train import by_plan


def main(path: str) -> None:
    """Train on one process's part of every minibatch, with DDP to average the gradients."""
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    net = DistributedDataParallel(by_plan.small_cnn())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    with by_plan.deterministic():
        for X, y in by_plan.batches(by_plan.digits().train, size=128, steps=48):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X.chunk(processes)[rank]), y.chunk(processes)[rank]).backward()
            optimizer.step()
    if rank == 0:
        keep(parameters_to_vector(net.parameters()).detach(), path)
    dist.barrier()
    dist.destroy_process_group()


def keep(weights: Tensor, path: str) -> None:
    """Write the weights to a file that is complete or does not exist."""
    torch.save(weights, f"{path}.part")
    os.replace(f"{path}.part", path)


def weights(processes: int = 4, deadline: float = 180.0) -> Tensor:
    """Run :func:`main` with torchrun in several processes on this machine, and return the weights.

    Args:
        processes: the number of processes.
        deadline: seconds within which they must finish.

    Returns:
        flat, float32: the 9930 parameters of :func:`d2lps.train.small_cnn`.

    Raises:
        ProcessesError: if they fail, or do not finish in time; no process is left behind.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.pt")
        # Without an address of its own, torchrun gives the processes the name of this host, which may have none.
        launch = "-m torch.distributed.run --local-addr=127.0.0.1 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0"
        command = [sys.executable, *launch.split(), f"--nproc-per-node={processes}", "-m", "d2lps.train.ddp", str(path)]
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        modules = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1", "PYTHONPATH": modules}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as torchrun:
            try:
                output, _ = torchrun.communicate(timeout=deadline)
            except BaseException as error:  # even an interrupted cell must leave no process behind
                _end(torchrun)
                if isinstance(error, subprocess.TimeoutExpired):
                    last = (error.output or b"").decode(errors="replace").splitlines()[-10:]
                    values = {"seconds": f"{deadline:g}", "output": "\n".join(last)}
                    raise ProcessesError(text("processes.unfinished", count=processes, **values)) from None
                raise
        if not path.exists():
            # The first lines name the cause; torchrun's report on the other processes follows.
            raise ProcessesError(text("processes.failed", count=processes, output=output[:2000]))
        return torch.load(path, weights_only=True)  # noqa: TID251


def _end(torchrun: subprocess.Popen) -> None:
    torchrun.terminate()  # it then ends its processes, which have sessions of their own
    try:
        torchrun.wait(timeout=10)
    except subprocess.TimeoutExpired:
        torchrun.kill()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # the work is done, and an ordinary exit sometimes aborts in a thread of torch
