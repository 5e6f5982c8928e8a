"""Chrome traces as torch.profiler writes them, made by hand: times in microseconds."""

import gzip
import json
from pathlib import Path

GEMM, ADD, COPY = "ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel", "Memcpy HtoD (Pinned -> Device)"
REDUCE, SEND = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ncclDevKernel_SendRecv(x)"


def kernel(name: str, start: float, end: float, stream: int = 7, **arguments: object) -> dict:
    kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return {"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start} | {
        "args": {key.replace("_", " "): value for key, value in arguments.items()}
    }


def call(name: str, start: float, end: float, kind: str = "user_annotation", thread: int = 1) -> dict:
    return {"ph": "X", "cat": kind, "name": name, "pid": 9, "tid": thread, "ts": start, "dur": end - start}


def step(number: int, start: float, end: float) -> dict:
    return call(f"ProfilerStep#{number}", start, end)


def reduce(start: float, end: float, group: str = "[0, 1]", role: str = "default_pg", **more: object) -> dict:
    about = {"Process Group Ranks": group, "Process Group Description": role, "Collective name": "allreduce"}
    made = kernel(REDUCE, start, end, 20)
    return made | {"args": about | {"In msg nelems": 100, "Out msg nelems": 100, "dtype": "Float"} | more}


def write(folder: Path, rank: int, *events: dict, world: int = 2, **head: object) -> Path:
    """Write the trace of a rank, and return its file."""
    file = folder / f"rank{rank}.json.gz"
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    content = {"schemaVersion": 1, "distributedInfo": info, **head, "traceEvents": [*events], "traceName": "x"}
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    return file
