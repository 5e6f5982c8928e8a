"""Processes of one host that see each other's memory: nothing is sent, everybody reads and adds where it lies.

    carrier = d2lps.SharedMemory()
    gradient = d2lps.SharedMemory.tensor(10_000_000)     # lives where the others can read it
    trace = d2lps.run(d2lps.sharded(carrier.names), gradient, carrier)

Ordinary tensors work as well; they are first copied to where the others can read them.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from d2lps.carriers.base import Executed, Program
from d2lps.carriers.ranks import Ranks
from d2lps.carriers.rendezvous import ProcessesError
from d2lps.carriers.segments import Location, Segment, location_of, opened, require_apart
from d2lps.carriers.shared_program import LINE, ProgressTable, SharedProgram, misfit, tasks
from d2lps.carriers.tensors import TensorError
from d2lps.messages import text
from d2lps.units import is_count


class SharedMemory(Ranks):
    """The carrier for processes of one host: ``SharedMemory()``, under torchrun or in a ``%%px`` cell.

    All ranks make their carriers in the same order, one for each thread that runs something: a run that finds another
    thread's under way is refused, and ends that, too. After a RankLost, or Ctrl-C, all make new ones.

    Parameters
    ----------
    playing, deadline, store, rank, size
        as for :class:`Processes`.

    Raises
    ------
    ProcessesError
        if this is not one of several processes, or they are not on one host.
    RankLost
        if one of them does not come.
    """

    kind = "shared memory"
    shares_memory = True

    def _open(self) -> None:
        if not self.one_host:
            raise ProcessesError(text("processes.several-hosts"))
        self._result: Tensor | None = None
        self._copies: dict[str, Tensor] = {}  # node → where others read what lies in ordinary memory
        self._table = ProgressTable(self.common(LINE * self.size, torch.int64), self.rendezvous)

    @staticmethod
    def tensor(given: "int | Tensor", dtype: torch.dtype = torch.float32) -> Tensor:
        """A flat tensor in memory that other processes can read.

        Parameters
        ----------
        given
            how many elements, which are zero; or a tensor to copy, of any shape.
        dtype
            the type of so many elements; a copy has that of its original.

        Returns
        -------
        Tensor
            flat, in main memory.

        Raises
        ------
        TensorError
            if there is no room, or ``given`` is neither.

        Examples
        --------
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
        """One flat tensor that all processes have: they all call this, and each gets the same memory.

        Parameters
        ----------
        elements
            how many, the same on all processes; they are zero.
        dtype
            their type, the same on all processes.

        Returns
        -------
        Tensor
            flat, the same memory on all processes.

        Raises
        ------
        TensorError
            if there is no room, or the processes ask for different ones.
        """
        with self.telling():
            mine = self.tensor(elements, dtype) if self.rank == 0 else None
            wishes = self.rendezvous.all_gather("common", [f"{elements} elements of {dtype}", _location(mine)])
            for rank, (wish, _) in enumerate(wishes):
                if wish != wishes[0][0]:
                    raise TensorError(text("processes.other-wish", rank=rank, wish=wish, first=wishes[0][0]))
            theirs = mine if mine is not None else self._opened(wishes[0][1], dtype, 0)
            self.rendezvous.all_gather("opened", None)  # by now everyone has it, and rank 0 may let it go
            return theirs

    def into(self, result: Tensor) -> "SharedMemory":
        """This carrier with one result for all: every key goes there, and all gradients stay as they are.

        For plans in which each key comes together at one node and stays there, such as
        ``reduce_scatter(nodes, direct=True)``.

        Parameters
        ----------
        result
            a tensor made by :meth:`common`, of the gradients' size and dtype.

        Returns
        -------
        SharedMemory
            a carrier like this one, with that result.

        Raises
        ------
        TensorError
            if ``result`` is no such tensor.
        """
        if not isinstance(result, Tensor) or result.dim() != 1 or result.numel() and location_of(result) is None:
            raise TensorError(text("processes.no-common"))
        carrier = copy.copy(self)
        carrier._result = result
        return carrier

    def buffer(self, node: str, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.tensor(elements, dtype)

    def describe(self, tensors: Mapping[str, Tensor]) -> str:
        return f"shared memory ×{self.size}"

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
        everyone = self.rendezvous.all_gather(
            "memory",
            {
                "trouble": None if self._result is None else misfit(self._result, program),
                "result": _location(self._result),
                "private": [node for node in seen if seen[node] is not program.tensors[node]],
                "locations": {node: _location(tensor) for node, tensor in seen.items()},
            },
        )
        locations = _agreed_locations(everyone, like.element_size())
        private = {node for rank in everyone for node in rank["private"]}
        memory = {
            (node, False): seen[node] if node in seen else self._opened(locations[node], like.dtype, ranks[node])
            for node in program.plan.nodes
        }
        # Room for what a step overwrites while others still read it.
        for node in sorted({kept.reads.node for step in program.steps for kept in step.kept}):
            memory[node, True] = self.common(like.numel(), like.dtype)
        by_rank = tasks(program.steps, ranks, private)
        return SharedProgram(program, by_rank, self.rank, memory, private, self._result)

    def _seen(self, node: str, tensor: Tensor) -> Tensor:
        """The tensor itself where others can read it, else a place for a copy."""
        if not tensor.numel() or location_of(tensor) is not None:
            return tensor
        copied = self._copies.get(node)
        if copied is None or (copied.numel(), copied.dtype) != (tensor.numel(), tensor.dtype):
            copied = self._copies[node] = self.tensor(tensor.numel(), tensor.dtype)
        return copied

    def _opened(self, location: dict | None, dtype: torch.dtype, rank: int) -> Tensor:
        """What ``rank`` has there. It goes with its process: who cannot open it asks whether that is still alive."""
        try:
            return torch.empty(0, dtype=dtype) if location is None else opened(Location(**location), dtype)
        except TensorError as error:
            return self.rendezvous.fail(None, [rank], "closed", str(error))

    def close(self) -> None:
        super().close()
        self._copies.clear()


def _location(tensor: Tensor | None) -> dict | None:
    """Where a tensor lies, as other processes are told; None where there is nothing to find."""
    return None if tensor is None or not tensor.numel() else asdict(location_of(tensor))


def _agreed_locations(everyone: list[dict], width: int) -> dict[str, dict | None]:
    """Where each node's memory is. Raises TensorError, alike on all ranks, where what they say does not go together."""
    for rank, theirs in enumerate(everyone):
        if theirs["trouble"]:
            raise TensorError(theirs["trouble"])
        if theirs["result"] != everyone[0]["result"]:
            raise TensorError(text("processes.other-result", rank=rank))
    locations = {node: location for theirs in everyone for node, location in theirs["locations"].items()}
    named = locations | {"the one result": everyone[0]["result"]}
    require_apart({name: Location(**location) for name, location in named.items() if location}, width)
    return locations
