"""The optimizer steps that a server may take, chosen by name and numbers; never by code from elsewhere.

Each rule changes ``weight`` in place from the complete sum ``gradient``, and keeps what it must remember in
``memory``, a dict of its own for each node and key. They use the methods of their tensors only, so
that a plan can name a rule without torch being there.
"""

import inspect


def sgd(weight, gradient, memory: dict, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
    """Stochastic gradient descent: v ← μv + g + λw, w ← w − ηv.

    ``lr`` is η, ``momentum`` μ (from the second step on), ``weight_decay`` λ. In float32 and float64 it is
    ``torch.optim.SGD`` bit for bit; half precision is computed in float32.
    """
    if weight_decay:
        gradient = gradient.add(weight, alpha=weight_decay)
    if momentum:
        velocity = memory.get("velocity")
        if velocity is None:
            memory["velocity"] = gradient = gradient.clone()
        else:
            gradient = velocity.mul_(momentum).add_(gradient)
    weight.add_(gradient, alpha=-lr)


RULES = {"sgd": sgd}


def numbers_of(rule: str) -> dict[str, bool]:
    """The numbers that a rule knows, each with whether it must be given."""
    parameters = inspect.signature(RULES[rule]).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
