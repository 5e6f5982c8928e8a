"""Add up gradients in a ring of processes, and compare a ring with shards: predicted, measured, and the error.

.venv/bin/torchrun --local-addr=127.0.0.1 --nproc-per-node=4 examples/ring.py
"""

import torch

from d2lps import Processes, calibrate, compare, ring, run, sharded

carrier = Processes()  # gloo, or NCCL if every rank has a GPU of its own
gradient = torch.full((10_000_000,), float(carrier.rank))
trace = run(ring(carrier.names), gradient, carrier)  # rank 0 gets the whole run
plans = {"ring": ring(carrier.names), "sharded": sharded(carrier.names)}
table = compare(plans, "40 MB", carrier, calibrate(carrier))  # predicted, measured, error
if carrier.rank == 0:
    print(trace, table, sep="\n")
