"""Send tokens to the device of their expert, and back: a mixture of experts with all-to-alls.

>>> torch.manual_seed(0) and None
>>> layer = Experts(["a", "b"], width=4, experts=4)
>>> y = layer(list(torch.randn(2, 16, 4)))
>>> y[0].shape, layer.load, layer.traces[0].bytes_received("a"), layer.traces[0].bytes_received("b")
(torch.Size([16, 4]), Load(tokens=[9, 10, 0, 13], dropped=6), 128, 80)

A router chooses one expert for each token (Fedus et al., "Switch Transformers", JMLR 2022). A token travels if its
expert is elsewhere, so the all-to-all has parts of unequal sizes. An expert accepts some tokens from each device; those
beyond this capacity are dropped: their output is 0, and the addition around the layer leaves them as they were.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from d2lps.algorithms.collectives import all_to_all
from d2lps.algorithms.rings import ring
from d2lps.carriers.execute import run
from d2lps.carriers.processes import Processes
from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.parse import names
from d2lps.trace import Trace
from d2lps.train.gpt import Perceptron

__all__ = ["ExpertError", "Experts", "Load"]


class ExpertError(Brief, ValueError):
    """Experts that cannot be dealt to devices, tokens that do not fit, or a router that makes no numbers."""


class Load(NamedTuple):
    """How many tokens of all devices chose each expert, and how many were dropped."""

    tokens: list[int]
    dropped: int


class Experts(nn.Module):
    """A layer of experts, each a perceptron on one of the devices, and the router that all devices have.

    Args:
        devices: Their names; each has the next experts, equally many.
        width, experts: The size of a token, and the number of experts.
        capacity: An expert accepts ⌈capacity · tokens/experts⌉ of the tokens of a device.
        carrier: One process per device, all with the same random numbers. Without it all devices are in this process.

    Raises:
        ExpertError: If the devices cannot have equally many experts, or these accept no token.
    """

    def __init__(
        self, devices: Iterable[str], width: int, experts: int, capacity: float = 1.25, carrier: Processes | None = None
    ):
        super().__init__()
        self.devices, self.width, self.capacity, self.carrier = names(devices), width, capacity, carrier
        if experts < 1 or experts % len(self.devices):
            raise ExpertError(text("experts.deal", experts=experts, devices=len(self.devices)))
        if not 0 < capacity < math.inf:
            raise ExpertError(text("experts.capacity", capacity=capacity))
        self.mine = self.devices if carrier is None else carrier.playing(ring(self.devices))
        self.each, self.router = experts // len(self.devices), nn.Linear(width, experts, bias=False)
        self.of = {node: range(i * self.each, (i + 1) * self.each) for i, node in enumerate(self.devices)}
        modules = [Perceptron(width) for _ in range(experts)]  # all of them, so that random numbers are alike
        self.experts = nn.ModuleDict({f"{e}": modules[e] for node in self.mine for e in self.of[node]})
        self.traces: list[Trace] = []  # of all all-to-alls so far
        self.load: Load | None = None  # of the last forward pass

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs for the tokens of each device of this process: (tokens, width), like the inputs."""
        orders, gates, kept = self._routes(inputs)
        rows = [[sum(row[e] for e in self.of[node]) for node in self.devices] for row in kept]
        arrived = _Exchange.apply(self, rows, *[x[order] for x, order in zip(inputs, orders, strict=True)])
        made = [self._compute(node, part, kept) for node, part in zip(self.mine, arrived, strict=True)]
        returned = _Exchange.apply(self, [*zip(*rows, strict=True)], *made)
        outputs = zip(inputs, orders, gates, returned, strict=True)
        return [torch.zeros_like(x).index_add(0, i, (y * gate[:, None]).to(x.dtype)) for x, i, gate, y in outputs]

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[list[int], list[int]]]:
        """Return the kept tokens by expert, their gates, and the numbers of tokens that chose each expert, and stay."""
        logits = self.router(x)
        gates, choice = logits.softmax(-1).max(-1)
        chosen = nn.functional.one_hot(choice, logits.shape[1])
        place = (chosen.cumsum(0) * chosen).sum(-1)  # in the queue of its expert, from 1
        kept = (place <= math.ceil(self.capacity * len(x) / logits.shape[1])).nonzero().flatten()
        order = kept[choice[kept].argsort(stable=True)]
        return order, gates[order], (chosen.sum(0).tolist(), chosen[kept].sum(0).tolist())

    def _routes(self, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[list[int]]]:
        """Check and route all inputs; return orders and gates, and the kept tokens by device and expert."""
        with nullcontext() if self.carrier is None else self.carrier.telling():
            if len(inputs) != len(self.mine) or any(x.shape[1:] != (self.width,) or not len(x) for x in inputs):
                shapes = " ".join(str(tuple(x.shape)) for x in inputs)
                raise ExpertError(text("experts.tokens", devices=len(self.mine), width=self.width, shapes=shapes))
            if not all(torch.isfinite(self.router(x)).all() for x in inputs):
                raise ExpertError(text("experts.not-finite"))
            orders, gates, chosen = zip(*map(self.route, inputs), strict=True)
        mine = dict(zip(self.mine, chosen, strict=True))
        everyone = mine if self.carrier is None else dict(chain(*map(dict.items, self.carrier.all_gather(mine))))
        wanted, kept = zip(*[everyone[node] for node in self.devices], strict=True)  # numbers by device and expert
        dropped = sum(map(sum, wanted)) - sum(map(sum, kept))
        self.load = Load([*map(sum, zip(*wanted, strict=True))], dropped)
        return orders, gates, kept

    def _compute(self, node: str, part: Tensor, kept: Sequence[list[int]]) -> Tensor:
        """Let the experts of a device compute; tokens stand in the order of their devices, then of their experts."""
        pieces = [*part.split([row[e] for row in kept for e in self.of[node]])]
        for i, e in enumerate(self.of[node]):
            mine = pieces[i :: self.each]
            outputs = self.experts[f"{e}"](torch.cat(mine))
            pieces[i :: self.each] = outputs.split([len(piece) for piece in mine])
        return torch.cat(pieces)

    def exchange(self, rows: list, parts: Sequence[Tensor]) -> list[Tensor]:
        """Send ``rows[i][j]`` rows of device i to device j; return what arrives on each of them."""
        plan, total = all_to_all(self.devices, sizes=rows), self.width * sum(map(sum, rows))
        places, buffers = plan.slices(total), {}
        for node, part in zip(self.mine, parts, strict=True):
            buffers[node], start = part.new_zeros(total), self.width * sum(map(sum, rows[: self.devices.index(node)]))
            buffers[node][start : start + part.numel()] = part.flatten()
        self.traces.append(run(plan, buffers, self.carrier))
        wants = {node: [places[key] for wanting, key, _ in plan.wants if wanting == node] for node in self.mine}
        arrived = [torch.cat([buffers[node][:0], *[buffers[node][place] for place in wants[node]]]) for node in wants]
        return [part.view(-1, self.width) for part in arrived]

    def sum_router(self) -> None:
        """Add up the gradients of the router over all processes; in one process they are."""
        if self.carrier is not None and self.router.weight.requires_grad:
            run(ring(self.devices), self.router.weight.grad.view(-1), self.carrier)


class _Exchange(torch.autograd.Function):
    """An all-to-all; the gradients go back the same ways."""

    @staticmethod
    def forward(ctx, layer: Experts, rows: list, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.layer, ctx.rows = layer, rows
        return tuple(layer.exchange(rows, parts))

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        return None, None, *ctx.layer.exchange([*zip(*ctx.rows, strict=True)], gradients)
