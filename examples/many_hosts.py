"""Train a small network for handwritten digits on several hosts. On every host, with the name or address of the first:

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint host0:29500 examples/many_hosts.py

The same script runs by srun and in Kubernetes (docs/many-hosts.md). Gradients travel by NCCL where every process has a
GPU of its own, else by gloo.
"""

import argparse

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps import Processes, halving_doubling, kvstore, ring, run, sharded, train

PLANS = {"ring": ring, "sharded": sharded, "halving_doubling": halving_doubling}
LR, SIZE = 0.03, 128  # learning rate; examples per minibatch, of all processes together


def by_plan(strategy: str, steps: int) -> tuple[str, torch.nn.Module]:
    """Every process computes its part of each minibatch; the plan adds the gradients up; all take the same step."""
    carrier = Processes()
    plan = PLANS[strategy](carrier.names)
    net = train.small_cnn().to(carrier.device)
    for X, y in train.batches(train.digits().train, SIZE, steps):
        X, y = (part[carrier.rank :: carrier.size].to(carrier.device) for part in (X, y))
        _, gradient = train.loss_and_gradient(net, X, y, count=SIZE)
        run(plan, gradient, carrier)
        weights = parameters_to_vector(net.parameters()).detach()
        vector_to_parameters(weights - LR * gradient, net.parameters())
    where = f"{carrier.backend}, rank {carrier.rank} of {carrier.size}"
    carrier.close()
    return where, net


def by_store(steps: int, servers: int) -> tuple[str, torch.nn.Module]:
    """The same through the key–value store; its servers, on the first ranks' hosts, hold and update the weights."""
    net = train.small_cnn()
    names = [name for name, _ in net.named_parameters()]
    weights = [weight.detach() for weight in net.parameters()]
    with kvstore.create("dist_sync", servers=servers) as store:
        store.init(names, weights)
        store.set_optimizer("sgd", lr=LR)
        store.pull(names, out=weights)
        for X, y in train.batches(train.digits().train, SIZE, steps):
            X, y = X[store.rank :: store.num_workers], y[store.rank :: store.num_workers]
            net.zero_grad()
            (cross_entropy(net(X), y, reduction="sum") / SIZE).backward()
            store.pushpull(names, [weight.grad for weight in net.parameters()], out=weights)
        return f"store, rank {store.rank} of {store.num_workers}", net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=[*PLANS, "store"], default="ring")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--servers", type=int, default=1, help="of the store")
    given = parser.parse_args()
    if given.strategy == "store":
        where, net = by_store(given.steps, given.servers)
    else:
        where, net = by_plan(given.strategy, given.steps)
    X, y = train.digits().test
    right = (net.cpu()(X).argmax(1) == y).float().mean().item()
    # All processes print the same number: they have the same weights.
    print(f"{given.strategy}: {right:.4f} of the test digits are right ({where})\n", end="", flush=True)


if __name__ == "__main__":
    main()
