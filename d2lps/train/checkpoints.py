"""Checkpoints for a training whose processes may be killed at any moment: it continues from the last complete one.

A checkpoint is a folder, ``step-120``, with a file of the store, a file for each worker, and a manifest with the
SHA-256 of all of them and of itself. It is written under another name and renamed when everything is on the disk; the
one before it stays. Files are checked against the manifest before they are used, so a damaged or unfinished
checkpoint is skipped. Manifests are numbered in the order in which they were written: neither the number of steps nor
a clock decides which checkpoint is the newest.
"""

import hashlib
import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from d2lps.algorithms.placement import require_count
from d2lps.kvstore.checkpoint import folder_to_disk, to_disk
from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.store import KVStore
from d2lps.messages import text, why

MANIFEST, STORE = "manifest.json", "store"
DRAFT, FINAL, REPLACED = ".step-", "step-", "~"
NUMBERED = re.compile(rf"{FINAL}\d+{REPLACED}?")


class CheckpointError(KVError):
    """A checkpoint could not be written, or belongs to another training."""


class Resumed(NamedTuple):
    """The point from which a training continues.

    Args:
        steps: The number of steps done.
        own: The object that this worker had saved; None if it had saved none.
    """

    steps: int
    own: Any


class Checkpoints:
    """The checkpoints of one training, in a folder that all its workers can access.

    Args:
        folder: The folder, which may begin with ``~``; created if it does not exist.
        store: The worker's store. All workers make their own Checkpoints of the same folder, and call the same methods.
        keep: The number of checkpoints to keep: those written last, whatever their numbers of steps. A training that
            goes back to an earlier step, or another one in the same folder, thus replaces the checkpoints that it
            finds.

    Example:
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
        self.folder, self.store = Path(os.path.expanduser(folder)), store
        self.keep = require_count("keep", keep, error=Refused)

    def save(self, steps: int, own: Any = None) -> None:
        """Write a checkpoint: the store, the random state (torch, numpy, Python) and ``own`` of each worker.

        All workers call this between two steps, which in a synchronous store is the same point of the training for
        all. On return it is on the disk.

        Args:
            steps: The number of steps done, 0 or more, also as a number of NumPy or a tensor without dimensions. The
                same number again replaces the checkpoint of that number.
            own: Further state of this worker: numbers, texts, tensors, and lists and dicts of them, such as an
                optimizer's ``state_dict()``.

        Raises:
            CheckpointError: On all workers, if this checkpoint could not be written; earlier ones are still there.
            Refused: If ``steps`` is no such number; nothing has been written, and no other worker was waited for.
            KVError: An error of the store.
        """
        if isinstance(steps, torch.Tensor | np.ndarray | np.generic) and steps.ndim == 0:
            steps = steps.item()
        require_count("steps", steps, least=0, error=Refused)
        draft, final = self.folder / f"{DRAFT}{steps}", self.folder / f"{FINAL}{steps}"
        first, mine = self.store.rank == 0, draft / f"rank-{self.store.rank}"
        failure = self._failure(lambda: _emptied(draft)) if first else None
        self.store.barrier()
        failure = failure or self._failure(lambda: _written(mine, _packed(own)))
        # A worker that failed joins the barrier, too, so that the others do not wait in vain.
        if failure:
            _unlink(mine)
        self.store.barrier()
        if failure:
            raise failure
        if not all((draft / name).exists() for name in self._ranks()):
            raise CheckpointError(text("checkpoint.others", path=final))
        try:
            self.store.save(draft / STORE, then=partial(self._finish, draft, final, steps))
        except Refused as error:
            raise CheckpointError(text("checkpoint.written", path=self.folder, why=error)) from None

    def resume(self) -> Resumed | None:
        """Go back to the complete checkpoint that was written last.

        All workers call this once they have initialized their keys.

        Returns:
            None if there is no complete checkpoint.

        Raises:
            CheckpointError: If that checkpoint belongs to another model or another number of workers. Nothing has
                changed then.
        """
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
        """Do ``work``; if it raises, return the error as a CheckpointError."""
        try:
            work()
        except Exception as error:
            return CheckpointError(text("checkpoint.written", path=self.folder, why=why(error)))
        return None

    def _ranks(self) -> list[str]:
        return [f"rank-{rank}" for rank in range(self.store.num_workers)]

    def _finish(self, draft: Path, final: Path, steps: int) -> None:
        """Move the checkpoint into place, as worker 0, when all files are there. Raises Refused on all workers."""
        try:
            self._move(draft, final, steps)
        except Exception as error:
            raise Refused(why(error)) from None

    def _move(self, draft: Path, final: Path, steps: int) -> None:
        digests = {name: _digest(draft / name) for name in (STORE, *self._ranks())}
        order = 1 + max([manifest.get("order", 0) for _, manifest in self._newest_first()], default=0)
        manifest = {"steps": steps, "order": order, "workers": self.store.num_workers, "sha256": digests}
        content = json.dumps(manifest).encode()
        _written(draft / MANIFEST, content + b"\n" + hashlib.sha256(content).hexdigest().encode())
        folder_to_disk(draft)
        replaced = final.with_name(final.name + REPLACED)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.rename(final, replaced)  # still found, in case this process is killed before the next line
        os.rename(draft, final)
        folder_to_disk(self.folder)
        _delete(replaced)
        for old, _ in self._newest_first()[self.keep :]:
            _delete(old)

    def _newest_first(self) -> list[tuple[Path, Mapping]]:
        """Return each checkpoint with its manifest, the one written last first; those without a manifest come last."""
        found = [(path, _manifest(path)) for path in self.folder.glob(f"{FINAL}*") if NUMBERED.fullmatch(path.name)]
        # Manifests of earlier versions have no order: there the number of steps decides.
        return sorted(found, key=lambda one: (one[1].get("order", 0), one[1].get("steps", -1)), reverse=True)

    def _whole(self) -> Iterator[tuple[Path, Mapping]]:
        for path, manifest in self._newest_first():
            with suppress(OSError, KeyError):
                if all(_digest(path / name) == digest for name, digest in manifest["sha256"].items()):
                    yield path, manifest


def _manifest(folder: Path) -> Mapping:
    """Return the manifest of a checkpoint, or an empty one if it is missing or damaged."""
    with suppress(OSError, ValueError):
        content, digest = (folder / MANIFEST).read_bytes().split(b"\n")
        if digest == hashlib.sha256(content).hexdigest().encode():
            return json.loads(content)
    return {}


def _delete(checkpoint: Path) -> None:
    with suppress(OSError):
        (checkpoint / MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted checkpoint is incomplete
        shutil.rmtree(checkpoint)


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed worker
    folder.mkdir(parents=True)


def _written(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        to_disk(file.fileno())


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packed(own: Any) -> bytes:
    state: Any = np.random.get_state()
    kind, words, *rest = state
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
    except Exception:  # refuse now an object that could not be read again
        raise Refused(text("checkpoint.own", kind=type(own).__name__)) from None
    return room.getvalue()


def _unpacked(file: "Path | io.BytesIO") -> dict:
    """Read numbers, texts and tensors, but never code."""
    return torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251


def _random_from(numbers: Mapping) -> None:
    kind, words, *rest = numbers["numpy"]
    torch.set_rng_state(numbers["torch"])
    if torch.cuda.is_available() and len(numbers["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(numbers["cuda"])
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    version, state, gauss = numbers["python"]
    random.setstate((version, tuple(state), gauss))
