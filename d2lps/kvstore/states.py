"""What a server remembers of a part, on the wire: its value, and the tensors and numbers of the optimizer."""

import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.saving import State
from d2lps.kvstore.wire import DTYPES, raw
from d2lps.plan.optimizers import is_number


def packed(state: State) -> tuple[dict, memoryview]:
    """(what is said of it, its bytes)

    >>> said, payload = packed({"value": torch.ones(3), "steps": 2})
    >>> unpacked(said, payload)
    {'value': tensor([1., 1., 1.]), 'steps': 2}
    """
    tensors = {name: one for name, one in state.items() if isinstance(one, Tensor)}
    said = {
        "tensors": [[name, DTYPES.index(one.dtype), one.numel()] for name, one in tensors.items()],
        "numbers": {name: one for name, one in state.items() if name not in tensors},
    }
    return said, raw(torch.cat([one.contiguous().view(torch.uint8) for one in tensors.values()]))


def unpacked(said: dict, payload: memoryview) -> State:
    """What :func:`packed` made. Raises Refused where it is something else."""
    try:
        found, start = {}, 0
        for name, number, count in said["tensors"]:
            dtype = DTYPES[number]
            size = count * dtype.itemsize
            if not isinstance(name, str) or not 0 <= start <= start + size <= len(payload):
                raise Refused("the state of a key is longer than what came")
            found[name] = torch.empty(count, dtype=dtype)
            if size:
                raw(found[name])[:] = payload[start : start + size]
            start += size
        if start != len(payload) or not all(map(is_number, said["numbers"].values())):
            raise Refused("the state of a key has tensors and finite numbers")
        return found | said["numbers"]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise error if isinstance(error, Refused) else Refused(f"that is no state of a key ({error})") from None
