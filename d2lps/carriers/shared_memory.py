"""Processes of one host that see each other's memory: nothing is sent, each reads the others' memory and adds.

    carrier = d2lps.SharedMemory()
    gradient = d2lps.SharedMemory.tensor(10_000_000)     # lives where the others can read it
    trace = d2lps.run(d2lps.sharded(carrier.names), gradient, carrier)

Ordinary tensors work as well; they are first copied to where the others can read them.
"""

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor

from d2lps.carriers.base import Executed, Program
from d2lps.carriers.ranks import Ranks
from d2lps.carriers.rendezvous import ProcessesError
from d2lps.carriers.segments import Location, Segment, location_of, opened, require_apart
from d2lps.carriers.shared_program import LINE, ProgressTable, SharedProgram, tasks
from d2lps.carriers.tensors import TensorError
from d2lps.messages import text
from d2lps.units import is_count


class SharedMemory(Ranks):
    """The carrier for processes of one host: ``SharedMemory()``, under torchrun or in a ``%%px`` cell.

    All ranks make their carriers in the same order, one for each thread that runs plans: a run that finds another
    thread's run under way is refused, and ends that one, too. After a RankLost, or Ctrl-C, all make new carriers.

    Args:
        playing, deadline, store, rank, size: as for :class:`Processes`.

    Raises:
        ProcessesError: if this is not one of several processes, or they are not on one host.
        RankLost: if one of them does not come.
    """

    kind = backend = "shared memory"
    shares_memory = True

    def _open(self) -> None:
        if not self.one_host:
            raise ProcessesError(text("processes.several-hosts"))
        self._copies: dict[
            str, Tensor
        ] = {}  # node → a buffer that others can read, if its tensor is in ordinary memory
        self._table = ProgressTable(self.common(LINE * self.size, torch.int64), self.rendezvous)

    @staticmethod
    def tensor(given: "int | Tensor", dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a flat tensor in memory that other processes can read.

        Args:
            given: the number of elements, which are zero; or a tensor to copy, of any shape.
            dtype: the type of the zeros; a copy has the type of its original.

        Returns:
            flat, in main memory.

        Raises:
            TensorError: if there is no room, or ``given`` is neither.

        Example:
            >>> SharedMemory.tensor(torch.tensor([[1, 2], [3, 4]]))
            tensor([1, 2, 3, 4])
        """
        if isinstance(given, Tensor):
            flat = given.detach().reshape(-1)
            return SharedMemory.tensor(flat.numel(), flat.dtype).copy_(flat)
        if not is_count(given):
            raise TensorError(text("processes.shared-tensor", given=repr(given)))
        return Segment(given * dtype.itemsize).tensor(given, dtype)

    def common(self, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one flat tensor that all processes share: all of them call this, and each gets the same memory.

        Args:
            elements: the number of elements, which are zero; the same on all processes.
            dtype: their type, the same on all processes.

        Returns:
            flat, the same memory on all processes.

        Raises:
            TensorError: if there is no room, or the processes ask for different ones.
        """
        with self.telling():
            mine = self.tensor(elements, dtype) if self.rank == 0 else None
            wishes = self.rendezvous.all_gather("common", [f"{elements} elements of {dtype}", _location(mine)])
            for rank, (wish, _) in enumerate(wishes):
                if wish != wishes[0][0]:
                    raise TensorError(text("processes.other-wish", rank=rank, wish=wish, first=wishes[0][0]))
            theirs = mine if mine is not None else self._opened(wishes[0][1], dtype, 0)
            self.rendezvous.all_gather("opened", None)  # now all have opened it, and rank 0 may drop it
            return theirs

    def buffer(self, node: str, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.tensor(elements, dtype)

    def barrier(self) -> None:
        with self.telling():
            self._table.barrier()

    def load(self, program: Program) -> Callable[[], Executed]:
        with self.telling():
            shared = self._loaded(program)

        def execute() -> Executed:
            with self.telling(lambda: self._table.step):
                return shared.execute(self._table)

        return execute

    def _loaded(self, program: Program) -> SharedProgram:
        like, ranks = program.like, self.ranks(program.plan)
        seen = {node: self._seen(node, tensor) for node, tensor in program.tensors.items()}
        mine = {
            "private": [node for node in seen if seen[node] is not program.tensors[node]],
            "locations": {node: _location(tensor) for node, tensor in seen.items()},
        }
        everyone = self.rendezvous.all_gather("memory", mine)
        locations = {node: location for theirs in everyone for node, location in theirs["locations"].items()}
        require_apart({node: Location(**at) for node, at in locations.items() if at}, like.element_size())
        private = {node for theirs in everyone for node in theirs["private"]}
        memory = {
            (node, False): seen[node] if node in seen else self._opened(locations[node], like.dtype, ranks[node])
            for node in program.plan.nodes
        }
        # Room for values that a step overwrites while others still read them.
        for node in sorted({copy.reads.node for step in program.steps for copy in step.copies}):
            memory[node, True] = self.common(like.numel(), like.dtype)
        by_rank = tasks(program.steps, ranks, private)
        return SharedProgram(program, by_rank, self.rank, memory, private)

    def _seen(self, node: str, tensor: Tensor) -> Tensor:
        """Return the tensor itself if others can read it, else a buffer for its copy."""
        if not tensor.numel() or location_of(tensor) is not None:
            return tensor
        buffer = self._copies.get(node)
        if buffer is None or (buffer.numel(), buffer.dtype) != (tensor.numel(), tensor.dtype):
            buffer = self._copies[node] = self.tensor(tensor.numel(), tensor.dtype)
        return buffer

    def _opened(self, location: dict | None, dtype: torch.dtype, rank: int) -> Tensor:
        """Open the memory of ``rank`` at this location; if that fails, its process may have ended: raise RankLost."""
        try:
            return torch.empty(0, dtype=dtype) if location is None else opened(Location(**location), dtype)
        except TensorError as error:
            return self.rendezvous.fail(None, [rank], "closed", str(error))

    def close(self) -> None:
        super().close()
        self._copies.clear()


def _location(tensor: Tensor | None) -> dict | None:
    """Return the location of a tensor in a form that JSON can hold; None for no tensor or an empty one."""
    where = location_of(tensor) if tensor is not None and tensor.numel() else None
    return None if where is None else asdict(where)
