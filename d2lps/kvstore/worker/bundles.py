"""Parts of keys that travel in one frame: small parts of one server and dtype together, large ones alone.

So a server adds one frame while the next one travels, and a small key costs no frame of its own. What lies in shared
memory does not travel: one frame says where all of it lies.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from d2lps.kvstore.values import KeySpec, validate_key
from d2lps.kvstore.wire.arena import SHARED
from d2lps.kvstore.wire.frames import DTYPES, ENTRIES

BYTES, PARTS = 1 << 20, 4096  # at most, in one frame


class Bundle:
    """Parts of some keys, for one server, in the order of the keys.

    ``places``: for each part the place of its key among the keys; ``cuts``: the elements of that key, None for all;
    ``sizes``: how many these are; ``numbers``: of the shards; ``shared``: the parts travel through shared memory.
    """

    def __init__(self, server: int, dtype: torch.dtype, shared: bool):
        self.server, self.dtype, self.shared = server, dtype, shared
        self.places: list[int] = []
        self.cuts: list[slice | None] = []
        self.sizes: list[int] = []
        self.numbers: list[int] = []

    def name(self, keys: Sequence[KeySpec], i: int) -> str:
        """Return the name by which the server knows part ``i``."""
        spec = keys[self.places[i]]
        servers = [part.server for part, _ in spec.parts]
        which = f" {servers.index(self.server) + 1}/{len(servers)}" if len(servers) > 1 else ""
        return validate_key(spec.key) + which

    def entries(self, rounds: Sequence[int]) -> np.ndarray:
        """Return the table of a frame; ``rounds`` are by key."""
        entries = np.empty(len(self.places), ENTRIES)
        entries["part"], entries["elements"], entries["dtype"] = self.numbers, self.sizes, DTYPES.index(self.dtype)
        entries["round"] = [rounds[place] for place in self.places]
        entries["in_rows"] = 0
        return entries

    def pieces(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return views of these parts in flat tensors, one per key."""
        return [
            flats[place] if cut is None else flats[place][cut]
            for place, cut in zip(self.places, self.cuts, strict=True)
        ]

    def joined(self, flats: Sequence[Tensor]) -> Tensor:
        """Return the same as one tensor, without a copy if it is one piece."""
        pieces = self.pieces(flats)
        return pieces[0].resolve_neg() if len(pieces) == 1 else torch.cat(pieces)


def bundled(keys: Sequence[KeySpec], shares: Sequence[bool], most: int = PARTS) -> list[Bundle]:
    """Return all parts of ``keys`` in bundles of at most ``most``; ``shares``: by server, if it shares memory."""
    bundles: list[Bundle] = []
    opened: dict[tuple[int, bool], tuple[Bundle, int]] = {}  # by server and shared: the bundle, and its bytes so far
    for place, spec in enumerate(keys):
        for part, number in spec.parts:
            size = part.stop - part.start
            nbytes = size * spec.dtype.itemsize
            shared = nbytes >= SHARED and shares[part.server]
            bundle, filled = opened.get((part.server, shared), (None, 0))
            full = bundle is None or bundle.dtype != spec.dtype or len(bundle.places) == most
            if full or not shared and filled + nbytes > BYTES:
                bundle, filled = Bundle(part.server, spec.dtype, shared), 0
                bundles.append(bundle)
            opened[part.server, shared] = bundle, filled + nbytes
            bundle.places.append(place)
            bundle.cuts.append(None if len(spec.parts) == 1 else slice(part.start, part.stop))
            bundle.sizes.append(size)
            bundle.numbers.append(number)
    return bundles
