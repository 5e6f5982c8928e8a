"""Which parts of which keys travel in one frame: small ones of one server and dtype together, large ones alone.

So one is added while the next one travels, and what is small costs no frame of its own. What lies in shared memory
does not travel: where all of it lies fits into one frame.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from d2lps.kvstore.values import Known, named
from d2lps.kvstore.wire import DTYPES, ENTRIES
from d2lps.kvstore.wire.arena import SHARED

BYTES, MOST = 1 << 20, 4096  # and number, of the parts that travel in one frame


class Bundle:
    """Parts of some keys, for one server, in the order of the keys.

    ``places``: for each part the place of its key among the keys; ``cuts``: the elements of that key, None for all;
    ``shared``: whether it is large enough for shared memory, where there is any.
    """

    def __init__(self, server: int, dtype: torch.dtype, shared: bool):
        self.server, self.dtype, self.shared = server, dtype, shared
        self.places: list[int] = []
        self.cuts: list[slice | None] = []
        self.sizes: list[int] = []
        self.numbers: list[int] = []

    def name(self, keys: Sequence[Known], i: int) -> str:
        """What its server calls part ``i``."""
        known = keys[self.places[i]]
        servers = [part.server for part, _ in known.places]
        which = f" {servers.index(self.server) + 1}/{len(servers)}" if len(servers) > 1 else ""
        return named(known.key) + which

    def entries(self, rounds: Sequence[int], well: Sequence[bool] | None = None) -> np.ndarray:
        """What is said of each part: ``rounds`` and ``well`` (whether it is finite; all, if left out) go by key."""
        found = np.empty(len(self.places), ENTRIES)
        found["part"], found["elements"], found["dtype"] = self.numbers, self.sizes, DTYPES.index(self.dtype)
        found["round"] = [rounds[place] for place in self.places]
        found["finite"] = 1 if well is None else [well[place] for place in self.places]
        return found

    def pieces(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Of flat tensors, one per key, those elements that belong here."""
        return [
            flats[place] if cut is None else flats[place][cut]
            for place, cut in zip(self.places, self.cuts, strict=True)
        ]

    def room(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Memory for all parts, one after the other: as a whole, and part by part."""
        whole = torch.empty(sum(self.sizes), dtype=self.dtype)
        return whole, whole.split(self.sizes)


def bundled(keys: Sequence[Known], shares: Callable[[int], bool]) -> list[Bundle]:
    """All parts of ``keys``, in bundles; ``shares``: whether a server can read this worker's memory."""
    done: list[Bundle] = []
    opened: dict[tuple[int, bool], tuple[Bundle, int]] = {}  # by server and whether it is shared; with its bytes
    for place, known in enumerate(keys):
        for part, number in known.places:
            size = part.stop - part.start
            nbytes = size * known.dtype.itemsize
            shared = nbytes >= SHARED and shares(part.server)
            bundle, filled = opened.get((part.server, shared), (None, 0))
            full = bundle is None or bundle.dtype != known.dtype or len(bundle.places) == MOST
            if full or not shared and filled + nbytes > BYTES:
                bundle, filled = Bundle(part.server, known.dtype, shared), 0
                done.append(bundle)
            opened[part.server, shared] = bundle, filled + nbytes
            bundle.places.append(place)
            bundle.cuts.append(None if len(known.places) == 1 else slice(part.start, part.stop))
            bundle.sizes.append(size)
            bundle.numbers.append(number)
    return done
