"""Judge saving that a crash cannot spoil: crash it before each operation, in all states that the disk may be left in.

What is loaded then has to be the last data whose save has returned, or those of the save that was under way. Others
may read at any moment, and save under another name.
"""

from collections.abc import Callable
from dataclasses import dataclass

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure

from .crashing_disk import Crash, Disk, Folder, Operation

# Names that begin or end like the first, are as long, or have a checksum with the same end.
OTHERS = ("rank-0.momentum", "rank-10", "layer-0", "rank-1", "rank-1576")
MANY = 4  # files for each saved name are enough, however often it crashed


@dataclass(frozen=True)
class SaveCase:
    """So many ranks save, each under its own name."""

    ranks: int

    @property
    def label(self) -> str:
        return f"n = {self.ranks}"


def data(version: int, rank: int = 0) -> bytes:
    """What is saved: each version has another length, so that mixtures differ from all of them."""
    return (f"rank {rank}, version {version}. " * (3 + version % 3)).encode()


def judge(case: SaveCase, answer: Callable) -> dict[str, int]:
    """How many crashes, and how many states of the disk, a right answer has survived; raises Failure."""
    return _Judge(case, answer).all()


@dataclass
class Run:
    """Saves with or without a crash: the disk, the operations, and the data that may be loaded."""

    disk: Disk
    log: list[Operation]
    may: list[bytes | None]
    crashed: bool
    count: int


class _Judge:
    def __init__(self, case: SaveCase, answer: Callable):
        self.case, self.answer, self.name = case, answer, "rank-0"
        self.crashes = self.states = 0
        self.relied = set()  # what load reads when all is well
        self.load_writes = False

    def all(self) -> dict[str, int]:
        self._first()
        whole = self._run(Disk(), [1, 2], [None])
        self._whatever_is_saved()
        self._readers()
        for at in range(1, whole.count + 1):
            self._two_names(at)
        for crash in range(1, whole.count + 2):
            run = self._run(Disk(), [1, 2], [None], crash)
            self.crashes += 1
            for state in run.disk.after_crash(f"{crash}"):
                self.states += 1
                self._restarted(run, state)
        self._rubbish()
        return {"crashes": self.crashes, "states": self.states}

    # ---- playing

    def _functions(self, folder: Folder) -> tuple[Callable, Callable]:
        result = call(self.case, self.answer, folder)
        both = tuple(result) if isinstance(result, tuple | list) else ()
        if len(both) != 2 or not all(map(callable, both)):
            raise failure("wrong-type", "not-save-and-load", self.case, type=type(result).__name__)
        return both

    def _load(self, folder: Folder, load: Callable, name: str = "rank-0") -> "bytes | None":
        got = call(self.case, load, name, none=True)
        if got is not None and not isinstance(got, bytes | bytearray | memoryview):
            raise failure("wrong-type", "load-not-bytes", self.case, type=type(got).__name__)
        return None if got is None else bytes(got)

    def _first(self) -> None:
        """An empty disk has no data; saved data are found."""
        disk = Disk()
        folder = Folder(disk)
        save, load = self._functions(folder)
        nothing = self._load(folder, load)
        if nothing is not None:
            raise failure("differs", "load-of-nothing", self.case, got=repr(nothing)[:60])
        call(self.case, save, self.name, data(1), none=True)
        if not folder.log:
            raise failure("todo", "nothing-saved", self.case)
        folder.seen.clear()
        got = self._load(folder, load)
        if got != data(1):
            raise failure("differs", "load-other", self.case, got=_shown(got), right=_shown(data(1)))
        self.relied = set(folder.seen)

    def _run(self, disk: Disk, versions: list[int], may: list, crash: int = 0) -> Run:
        """Save these versions one after the other, on a disk from which one of ``may`` is loaded; maybe crash."""

        def before(number: int) -> None:
            if number == crash:
                raise Crash

        disk = disk.copy()
        folder = Folder(disk, before)
        try:
            save, _ = self._functions(folder)
            for version in versions:
                may, folder.log = [*may[-1:], data(version)], []
                call(self.case, save, self.name, data(version), none=True)
                if folder.crashed:  # and the answer has caught it
                    break
                may = may[-1:]
        except Crash:
            pass
        return Run(disk, list(folder.log), may, folder.crashed, folder.count)

    def _restarted(self, run: Run, state: Disk) -> "bytes | None":
        folder = Folder(state.copy())
        try:
            _, load = self._functions(folder)
            got = self._load(folder, load)
        except Failure as error:
            raise self._failure(run, state, folder, "load-fails", _what(self.case, error)) from None
        if got not in run.may:
            raise self._failure(run, state, folder, "load-wrong", _shown(got))
        return got

    def _whatever_is_saved(self) -> None:
        """All bytes are kept, even if little or nothing has changed."""
        folder = Folder(Disk())
        save, load = self._functions(folder)
        similar = b"step 1 lr 0.1", b"step 1 lr 0.2", b"step 2 lr 0.2", b"Step 2 lr 0.2"
        for content in (*similar, b"step 1" + bytes(3), bytes(9), b"", b" \xff\r\n", similar[0]):
            call(self.case, save, self.name, content, none=True)
            for reader in (load, self._functions(folder)[1]):
                got = self._load(folder, reader)
                if got != content:
                    values = {"got": _shown(got), "right": _shown(content)}
                    raise failure("differs", "load-other", self.case, **values)

    def _readers(self) -> None:
        """Another process loads before each operation of the second save; a third one has loaded before, too."""
        disk = Disk()
        folder = Folder(disk, lambda number: self._reader(disk, folder, number))
        (first, _), (second, _), (_, load) = (self._functions(each) for each in (Folder(disk), folder, Folder(disk)))
        call(self.case, first, self.name, data(1), none=True)
        self._load(folder, load)
        folder.count = 0
        try:
            call(self.case, second, self.name, data(2), none=True)
        except Failure as error:
            if error.mistake == "raised":
                raise failure("load-writes", "reader-spoils", self.case, got=_what(self.case, error)) from None
            if self.load_writes and error.mistake == "differs":
                error.mistake = "load-writes"
            raise
        for mistake, reader in (("load-writes", self._functions(Folder(disk))[1]), ("differs", load)):
            if (got := self._load(folder, reader)) != data(2):
                raise failure(mistake, "reader-late", self.case, got=_shown(got), right=_shown(data(2)))

    def _reader(self, disk: Disk, folder: Folder, number: int) -> None:
        reader = Folder(disk)
        run = Run(disk.copy(), list(folder.log), [data(1), data(2)], False, number)
        try:
            got = self._load(reader, self._functions(reader)[1])
            self.load_writes |= bool(reader.log)
        except Failure as error:
            raise self._failure(run, disk, reader, "reader-fails", _what(self.case, error)) from None
        if got not in run.may:
            raise self._failure(run, disk, reader, "reader-wrong", _shown(got))

    def _two_names(self, at: int) -> None:
        """Other ranks save under their own names before one operation of this one."""
        disk, names = Disk(), (self.name, *OTHERS)

        def before(number: int) -> None:
            for rank, name in enumerate(OTHERS, 1) if number == at else ():
                save, _ = self._functions(Folder(disk))
                call(self.case, save, name, data(1, rank), none=True)

        folder = Folder(disk, before)
        save, load = self._functions(folder)
        try:
            for version in (1, 2):
                call(self.case, save, self.name, data(version), none=True)
            got = [self._load(folder, load, each) for each in names]
        except Failure as error:
            values = {"first": repr(self.name), "others": _listed(OTHERS), "got": _what(self.case, error)}
            raise failure("same-name", "saves-fail", self.case, **values) from None
        right = [data(2), *(data(1, rank) if folder.count >= at else None for rank in range(1, len(names)))]
        for each, found, wanted in zip(names, got, right, strict=True):
            if found != wanted:
                values = {"first": repr(self.name), "others": _listed(OTHERS), "got": _shown(found)}
                raise failure("same-name", "saves-mixed", self.case, name=repr(each), right=_shown(wanted), **values)

    def _rubbish(self) -> None:
        """Crashes leave files; there must not be more and more of them."""
        disk = Disk()
        for version in range(40):
            disk = self._run(disk, [version], [None], version % 8 + 1).disk.after_crash(f"{version}")[-1]
        disk = self._run(disk, [40], [None]).disk
        if len(disk.names) > MANY:
            names = ", ".join(sorted(disk.names)[:6]) + ", …"
            raise failure("leaves-rubbish", "files-left", self.case, count=len(disk.names), names=names)

    # ---- sentences

    def _failure(self, run: Run, state: Disk, folder: Folder, sentence: str, got: str) -> Failure:
        values = {"got": got, "right": " / ".join(_shown(each) for each in run.may)}
        told = failure(self._mistake(run, folder, got), sentence, self.case, **values)
        told.sentence += "\n" + text("checks.save-done", log=_log(run.log)) + "\n" + _left(state)
        return told

    def _mistake(self, run: Run, folder: Folder, got: str) -> str:
        """Return the mistake of the last save, seen in its operations without a crash."""
        disk = self._run(Disk(), [1], [None]).disk
        log, relied = self._run(disk, [2], [data(1)]).log, self.relied
        renamed = [at for at, each in enumerate(log) if each.kind == "rename" and each.to in relied]
        if got in map(_shown, (None, data(1), data(2))):  # whole, and older than it may be
            safe = any(each.kind == "sync_folder" for each in log[(renamed or [0])[-1] :])
            if log and not safe:
                return "no-sync-folder"
        for at, each in enumerate(log):
            if each.kind == "write" and each.name in relied and each.name in disk.names:
                return "in-place"
            gone = each.kind == "remove" or (each.kind == "rename" and each.to not in relied)
            if gone and each.name in relied and not any(later < at for later in renamed):
                return "deletes-old-first"
        for at in renamed:
            file = log[at].file
            written_later = any(each.kind == "write" and each.file == file for each in log[at:])
            if written_later or not any(each.kind == "sync" and each.file == file for each in log[:at]):
                return "no-sync"
        return "differs"


def _what(case: SaveCase, error: Failure) -> str:
    """Its sentence, without the case and the full stop."""
    return error.sentence.removeprefix(case.label).lstrip(":： ").rstrip(".。")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))


def _left(disk: Disk) -> str:
    files = [f"{name}: {_shown(disk.files[file].content)}" for name, file in sorted(disk.names.items())]
    return text("checks.disk-left", files=", ".join(files) or "–")


def _shown(got: "bytes | None") -> str:
    """Data as a short text: its beginning, and its length.

    >>> _shown(b"rank 0, version 1. rank"), _shown(b""), _shown(None)
    ("b'rank 0, version 1.…' (23)", "b''", 'None')
    """
    if got is None or len(got) <= 18:
        return repr(got)
    return f"{bytes(got[:18])!r}"[:-1] + f"…' ({len(got)})"


def _log(log: list[Operation]) -> str:
    shown = [f"{each.kind}({', '.join(filter(None, (each.name, each.to)))})" for each in log]
    return " ".join(["…"] * (len(shown) > 12) + shown[-12:]) or "–"
