"""A training that can be killed at any moment, all of it: what was saved last is whole, and from there it goes on.

A checkpoint is a folder, ``step-120``, with the store in a file, a file for each worker, and a manifest with the
SHA-256 of all of them, and its own. It is written beside its place and renamed when everything is on the disk; the one
before it stays. What is read is checked against the manifest first, so a checkpoint that is damaged, or was never
finished, is passed over.
"""

import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.placement import require_count
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.together import Saving
from d2lps.messages import text

MANIFEST, STORE = "manifest.json", "store"
AHEAD, DONE = ".step-", "step-"


class CheckpointError(KVError):
    """A checkpoint that could not be written, or that is not of this training."""


class Resumed(NamedTuple):
    """Where a training goes on.

    Parameters
    ----------
    steps : int
        How many were done.
    own : object
        What this worker had saved of its own; None where that was nothing.
    """

    steps: int
    own: Any


class Checkpoints:
    """The checkpoints of one training in a folder, which all its workers see.

    Parameters
    ----------
    folder : str or Path
        Made if it is not there.
    store : KVStore
        The worker's. All workers make their own Checkpoints of the same folder, and call the same methods.
    keep : int
        How many checkpoints stay.

    Examples
    --------
    >>> import tempfile
    >>> from d2lps import kvstore
    >>> folder, total = tempfile.mkdtemp(), torch.zeros(1)
    >>> for life in range(2):
    ...     store = kvstore.create("local")
    ...     store.init("w", total)
    ...     checkpoints = Checkpoints(folder, store)
    ...     done, own = checkpoints.resume() or (0, "new")
    ...     store.pull("w", out=total)
    ...     print(done, own, total)
    ...     store.push("w", torch.ones(1))
    ...     checkpoints.save(10, own="mine")
    0 new tensor([0.])
    10 mine tensor([1.])
    """

    def __init__(self, folder: "str | os.PathLike", store: KVStore, keep: int = 2):
        self.folder, self.store, self.keep = Path(folder), store, require_count("keep", keep)
        self._saving: Saving | None = None  # in the background, until somebody has waited for it

    def save(self, steps: int, own: Any = None, background: bool = False) -> None:
        """Write a checkpoint: the store, random numbers (torch, numpy, Python) and ``own`` of each worker.

        All workers call it, between two steps; when it returns, it is on the disk, or in the ``background`` it will
        soon be: :meth:`wait`. In a synchronous store that is the same point of the training for all of them.

        Parameters
        ----------
        steps : int
            How many are done.
        own : object
            What else this worker needs: numbers, texts, tensors, and lists and dicts of them, such as an optimizer's
            ``state_dict()``.
        background : bool
            Whether to go on while the store is written. ``own`` is written first.

        Raises
        ------
        CheckpointError
            On all workers, if it could not be written, or the one in the background before it; those before are still
            there.
        KVError
            What the store raises.
        """
        self.wait()
        ahead, done = self.folder / f"{AHEAD}{steps}", self.folder / f"{DONE}{steps}"
        first, mine = self.store.rank == 0, ahead / f"rank-{self.store.rank}"
        failure = self._failure(lambda: first and _emptied(ahead))
        self.store.barrier()
        failure = failure or self._failure(lambda: _written(mine, _packed(own)))
        # Everybody waits for all, also who has failed: nobody waits in vain.
        failure and _unlink(mine)
        self.store.barrier()
        if failure:
            raise failure
        if not all((ahead / name).exists() for name in self._ranks()):
            raise CheckpointError(text("checkpoint.others", path=done))
        finish = partial(self._finish, ahead, done, steps)
        self._saving = self.store.save(ahead / STORE, background=True, then=finish)
        background or self.wait()

    def wait(self) -> None:
        """Until what is saved in the background is on the disk. All workers call it, before they end.

        Raises
        ------
        CheckpointError
            On all workers, if it could not be written; those before it are still there.
        KVError
            What the store raises.
        """
        saving, self._saving = self._saving, None
        try:
            saving and saving.wait()
        except Refused as error:
            raise CheckpointError(text("checkpoint.written", path=self.folder, why=error)) from None

    def resume(self) -> Resumed | None:
        """Go back to the newest checkpoint that is whole. All workers call it, when they have initialized their keys.

        Returns
        -------
        Resumed or None
            None where there is none to go back to.

        Raises
        ------
        CheckpointError
            If the newest that is whole is of another model, or of another number of workers. Nothing has changed then.
        """
        self.wait()
        for path, manifest in self._whole():
            if manifest["workers"] != self.store.num_workers:
                counts = {"there": manifest["workers"], "here": self.store.num_workers}
                raise CheckpointError(text("checkpoint.workers", path=path, **counts))
            own = _unpacked(path / f"rank-{self.store.rank}")
            try:
                self.store.load(path / STORE)
            except Refused as error:
                raise CheckpointError(text("checkpoint.model", path=path, why=error)) from None
            _random_from(own["random"])
            return Resumed(manifest["steps"], own["own"])
        return None

    def _failure(self, work: Callable) -> CheckpointError | None:
        """What goes wrong with ``work``, whatever it is."""
        try:
            work()
        except Exception as error:
            return CheckpointError(text("checkpoint.written", path=self.folder, why=error))
        return None

    def _ranks(self) -> list[str]:
        return [f"rank-{rank}" for rank in range(self.store.num_workers)]

    def _finish(self, ahead: Path, done: Path, steps: int) -> None:
        """Worker 0, when all files are there."""
        if failure := self._failure(partial(self._move, ahead, done, steps)):
            raise failure

    def _move(self, ahead: Path, done: Path, steps: int) -> None:
        digests = {name: _digest(ahead / name) for name in (STORE, *self._ranks())}
        manifest = {"steps": steps, "workers": self.store.num_workers, "sha256": digests}
        said = json.dumps(manifest).encode()
        _written(ahead / MANIFEST, said + b"\n" + hashlib.sha256(said).hexdigest().encode())
        _synced(ahead)
        if done.exists():
            shutil.rmtree(done)  # it was damaged, or this is the same step once more; the one before it is there
        os.rename(ahead, done)
        _synced(self.folder)
        for old in [path for _, path in self._steps()][self.keep :]:
            with suppress(OSError):
                (old / MANIFEST).unlink(missing_ok=True)  # first: half of it is none
                shutil.rmtree(old)

    def _steps(self) -> list[tuple[int, Path]]:
        """The folders of checkpoints, the newest first."""
        found = [(path.name.removeprefix(DONE), path) for path in self.folder.glob(f"{DONE}*")]
        return sorted([(int(number), path) for number, path in found if number.isdecimal()], reverse=True)

    def _whole(self) -> Iterator[tuple[Path, Mapping]]:
        for _, path in self._steps():
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                said, digest = (path / MANIFEST).read_bytes().split(b"\n")
                manifest = json.loads(said)
                whole = digest == hashlib.sha256(said).hexdigest().encode()
                if whole and all(_digest(path / name) == its for name, its in manifest["sha256"].items()):
                    yield path, manifest


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what a killed worker has left
    folder.mkdir(parents=True)


def _written(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _synced(folder: Path) -> None:
    """Have the names in it on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packed(own: Any) -> bytes:
    kind, words, *rest = np.random.get_state()
    numbers = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(words.astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    room = io.BytesIO()
    try:
        torch.save({"own": own, "random": numbers}, room)
        _unpacked(io.BytesIO(room.getvalue()))
    except Exception:  # what could not be read again is refused now
        raise Refused(text("checkpoint.own", kind=type(own).__name__)) from None
    return room.getvalue()


def _unpacked(file: "Path | io.BytesIO") -> dict:
    """Numbers, texts and tensors, never code."""
    return torch.load(file, map_location="cpu", weights_only=True)


def _random_from(numbers: Mapping) -> None:
    kind, words, *rest = numbers["numpy"]
    torch.set_rng_state(numbers["torch"])
    if torch.cuda.is_available() and len(numbers["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(numbers["cuda"])
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    version, state, gauss = numbers["python"]
    random.setstate((version, tuple(state), gauss))
