"""A folder of files that loses unsynced data at a crash: all of it, a part of it, or nothing, in any order."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import NamedTuple

from d2lps.notebook.grading import Ended

STATES = 24  # so many of the states that a crash may leave are tried


class Crash(Ended):
    """The machine has crashed."""


class Operation(NamedTuple):
    kind: str
    name: str
    file: int
    to: str = ""


@dataclass
class File:
    """The content that readers see, the content that surely survives a crash, and if they are equal."""

    content: bytes = b""
    kept: bytes = b""

    def after_crash(self) -> list[bytes]:
        """Return the possible contents afterwards: the old content, nothing, a part of the new, or all of it."""
        half = self.content[: len(self.content) // 2]
        return list(dict.fromkeys([self.kept, b"", half, self.content] if self.content != self.kept else [self.kept]))


@dataclass
class Disk:
    """Files under names. What is written lies in memory first; so do the names."""

    files: list[File] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    pending: list[dict[str, "int | None"]] = field(default_factory=list)

    def after_crash(self, seed: str) -> "list[Disk]":
        """Disks as they may be found after a crash: the extremes first, others drawn."""
        contents = [file.after_crash() for file in self.files]
        changes = [list(some) for count in range(len(self.pending) + 1) for some in combinations(self.pending, count)]
        lost, whole = [each[0] for each in contents], [each[-1] for each in contents]
        first = [(content, some) for content in (lost, whole) for some in (changes[0], changes[-1])]
        rest = list(product(product(*contents), changes))
        random.Random(seed).shuffle(rest)
        states, seen = [], set()
        for content, some in [*first, *rest]:
            names = dict(self.kept)
            for change in some:
                for name, file in change.items():
                    names.pop(name, None) if file is None else names.__setitem__(name, file)
            files = [File(each, each) for each in content]
            found = Disk(files, names, dict(names))
            key = tuple(sorted((name, files[file].content) for name, file in names.items()))
            if key not in seen and len(states) < STATES:
                seen.add(key)
                states.append(found)
        return states

    def copy(self) -> "Disk":
        files = [File(file.content, file.kept) for file in self.files]
        return Disk(files, dict(self.names), dict(self.kept), [dict(change) for change in self.pending])


class Folder:
    """The view of a :class:`Disk` for the learner's program.

    Args:
        disk: What holds the files.
        before (callable (number of the operation)): Called before each operation that changes something, and in the
            midst of a write; it may raise Crash.
    """

    def __init__(self, disk: Disk, before: Callable[[int], None] = lambda number: None):
        self._disk, self._before = disk, before
        self.count, self.log, self.seen, self.crashed = 0, [], set(), False

    def write(self, name: str, data: bytes) -> None:
        """Empty the file, or make a new one, and put ``data`` into it."""
        _require(name, data)
        self._step()
        disk = self._disk
        if name not in disk.names:
            disk.files.append(File())
            disk.names[name] = len(disk.files) - 1
            disk.pending.append({name: disk.names[name]})
        file = disk.names[name]
        self.log.append(Operation("write", name, file))
        disk.files[file].content = b""
        self._step()
        disk.files[file].content = bytes(data[: len(data) // 2])
        self._step()
        disk.files[file].content = bytes(data)

    def sync(self, name: str) -> None:
        """When this returns, the content of the file survives a crash."""
        self._file(name)
        self._step()
        file = self._file(name)  # others may have acted
        self.log.append(Operation("sync", name, file))
        self._disk.files[file].kept = self._disk.files[file].content

    def rename(self, old: str, new: str) -> None:
        """Give the file another name. A file of that name is replaced; one of the two is visible at each moment."""
        _require(new)
        self._file(old)
        self._step()
        file = self._file(old)
        self.log.append(Operation("rename", old, file, new))
        if old != new:
            self._disk.names[new] = self._disk.names.pop(old)
            self._disk.pending.append({old: None, new: file})

    def remove(self, name: str) -> None:
        """Take the file away."""
        self._file(name)
        self._step()
        file = self._file(name)
        self.log.append(Operation("remove", name, file))
        del self._disk.names[name]
        self._disk.pending.append({name: None})

    def sync_folder(self) -> None:
        """When this returns, the names survive a crash: new ones, other ones, and those that are gone."""
        self._step()
        self.log.append(Operation("sync_folder", "", -1))
        self._disk.kept, self._disk.pending = dict(self._disk.names), []

    def read(self, name: str) -> bytes:
        """What is in the file. Raises FileNotFoundError."""
        file = self._file(name)
        self.seen.add(name)
        return self._disk.files[file].content

    def names(self) -> list[str]:
        """The names of all files."""
        self._alive()
        return sorted(self._disk.names)

    def _file(self, name: str) -> int:
        _require(name)
        self._alive()
        if name not in self._disk.names:
            raise FileNotFoundError(name)
        return self._disk.names[name]

    def _alive(self) -> None:
        if self.crashed:  # whatever an answer catches: nothing happens after a crash
            raise Crash

    def _step(self) -> None:
        self._alive()
        self.count += 1
        try:
            self._before(self.count)
        except Crash:
            self.crashed = True
            raise


def _require(name: object, data: object = b"") -> None:
    if not isinstance(name, str):
        raise TypeError(f"name: {type(name).__name__}")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data: {type(data).__name__}")
