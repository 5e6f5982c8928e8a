"""The files of a class: which learner handed in what, and when. They are read, never changed.

A learner is an entry in the folder of the class; what Canvas or Moodle has named after one person belongs together.
"""

import math
import os
import re
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

LARGEST = 512 << 20  # bytes of a notebook, and of all that a zip has unpacked; a notebook with its pictures has 6 MiB
MOST = 1000  # files unpacked from a zip
SUFFIX = ".ipynb"
LISTED_FILES = 5  # other files named in a note
CANVAS = re.compile(r"(?P<name>[^_/]+)_(?P<late>LATE_)?(?P<id>[1-9]\d+)_[1-9]\d+_[^/]+")
MOODLE = re.compile(r"(?P<name>[^/]+?)_(?P<id>\d+)_assignsubmission_[a-z]+(_.*|/.*)?", re.S)
_UNENCODABLE = re.compile("[\ud800-\udfff]")  # bytes of a name that is not UTF-8, and half characters in JSON


@dataclass(frozen=True)
class Note:
    """A note on a notebook or an answer: a key under ``grade.note`` in the messages, and its values."""

    key: str
    values: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A notebook of a learner, or a note in the place of one.

    ``home`` is the learner's folder, if any; ``name`` the notebook's path as the report shows it; ``id`` the learner's
    number in Canvas or Moodle; ``late`` the number of days after the due time, rounded up, or None if it is unknown.
    """

    learner: str
    path: Path
    home: Path | None = None
    name: str = ""
    id: str = ""
    late: int | None = None
    note: Note | None = None


@dataclass(frozen=True)
class Sorter:
    """How to tell learners: ``names`` finds a learner's name and id in a path.

    ``due`` is when the work was due; ``handed_in(name, id)`` returns when a learner handed it in, or None. The time of
    a file does not count: it is often that of the download.
    """

    unpacked: Path  # an empty folder for the contents of zips
    names: re.Pattern | None = None
    due: datetime | None = None
    handed_in: Callable[[str, str], datetime | None] | None = None

    def who(self, path: str) -> tuple[str, str, bool]:
        """Return name, id and whether it is marked as late, for the path of a file or folder in that of the class.

        >>> Sorter(Path()).who("nguyenlan_LATE_4711_8801_ring-1.ipynb")
        ('nguyenlan', '4711', True)
        """
        for pattern in (self.names, CANVAS, MOODLE):
            if pattern and (match := pattern.fullmatch(path)):
                parts = {name: value or "" for name, value in match.groupdict().items()}
                name = parts.get("name") or parts.get("id") or path
                return name, parts.get("id", ""), bool(parts.get("late"))
        top = Path(path).parts[0]
        return (top if top != path or Path(top).suffix not in (SUFFIX, ".zip") else Path(top).stem), "", False

    def late(self, name: str, id: str, marked: bool) -> int | None:
        """Return how many days late a learner is, rounded up: at least 1 if marked so; None if that is not known."""
        time = self.handed_in(name, id) if self.due and self.handed_in else None
        days = max(0, math.ceil((time.timestamp() - self.due.timestamp()) / 86400)) if time else None
        return max(days or 0, 1) if marked else days


def find(folder: Path, out: Path | None, sorter: Sorter, alone: bool = False) -> list[Task]:
    """Return the notebooks of all learners below a folder, sorted by path, and notes on other files.

    ``alone`` means that the folder belongs to one learner. Names with a leading dot and the folder ``out`` are left
    out. Names that are not UTF-8 have replacement signs; two ids with one name stay two learners. Raises OSError.
    """
    if alone:
        return _files(folder, folder, folder.name, "", sorter)
    if folder.is_file():
        folder, entries = folder.parent, [folder]
    else:
        entries = [entry for entry in sorted(folder.iterdir()) if not (out and within(entry, out))]
    tasks = [task for entry in entries if entry.name[0] != "." for task in _tasks(entry, folder, sorter)]
    if others := [task.path.name for task in tasks if not task.learner]:
        tasks = [*(task for task in tasks if task.learner), Task("", folder, note=_beside(others))]
    if sorter.due and all(task.late is None for task in tasks):
        tasks.append(Task("", folder, note=Note("no-times")))
    plain, shown = (printable_names(getattr(task, part) for task in tasks) for part in ("learner", "name"))
    plain = {name: unicodedata.normalize("NFC", printed) for name, printed in plain.items()}
    count = Counter(name for name, _ in {(plain[task.learner], task.id) for task in tasks})
    for number, task in enumerate(tasks):
        learner = plain[task.learner]
        learner += f" ({task.id})" if task.id and count[learner] > 1 else ""
        tasks[number] = replace(task, learner=learner, name=shown[task.name])
    return tasks


def _tasks(entry: Path, folder: Path, sorter: Sorter) -> Iterator[Task]:
    """Yield what one entry of the folder of the class contains; other files than a learner's have no learner."""
    name, id, marked = sorter.who(entry.name)
    if entry.is_symlink():
        yield Task(name, entry, id=id, note=Note("link", {"file": printable(entry.name)}))
    elif entry.is_dir() or entry.suffix == ".zip":
        yield from _files(entry, folder, name, id, sorter)
    elif entry.suffix == SUFFIX:
        yield Task(name, entry, None, entry.name, id, sorter.late(name, id, marked))
    elif id:
        yield Task(name, entry, None, "", id, note=Note("no-notebooks", {"files": printable(entry.name)}))
    else:
        yield Task("", entry)


def _files(entry: Path, folder: Path, name: str, id: str, sorter: Sorter) -> list[Task]:
    """Return the notebooks of a learner's folder or zip, and a note on other files in it."""
    tasks, others = [], []
    for path in [*_below(entry)] if entry.is_dir() else [entry]:
        shown = str(path.relative_to(folder))
        name, id, marked = sorter.who(shown) if sorter.names else (name, id, sorter.who(entry.name)[2])
        task = Task(name, path, entry, shown, id, sorter.late(name, id, marked))
        if not within(path, entry):
            tasks.append(replace(task, name="", note=Note("link", {"file": printable(shown)})))
        elif path.suffix == ".zip":
            place = sorter.unpacked / str(len([*sorter.unpacked.iterdir()]))
            note = _unpack(path, place)
            tasks += [replace(task, name="", note=note)] if note else []
            for inner in () if note else _below(place):
                inside = f"{shown}/{inner.relative_to(place)}"
                if inner.suffix == SUFFIX:
                    tasks.append(replace(task, path=inner, home=place, name=inside))
                else:
                    others.append(inside)
        elif path.suffix == SUFFIX:
            tasks.append(task)
        else:
            others.append(str(path.relative_to(entry)))
    if others or not tasks:
        note = _beside(others, "beside" if tasks else "no-notebooks") if others else Note("empty")
        tasks.append(Task(name, entry, entry, "", id, note=note))
    return tasks


def within(path: Path, home: Path) -> bool:
    """Return whether a path is in a folder, or is the folder, once all links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(home))


def _below(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        links = [name for name in folders if Path(top, name).is_symlink()]
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield from (Path(top, name) for name in sorted([*names, *links]) if name[0] != ".")


def _beside(files: list[str], key: str = "beside") -> Note:
    """Return a note on files that are not graded."""
    listed = ", ".join(map(printable, files[:LISTED_FILES])) + (", …" if len(files) > LISTED_FILES else "")
    return Note(key, {"files": listed})


def _unpack(path: Path, place: Path) -> Note | None:
    """Unpack the files of a zip into a new folder; return a note if that cannot be done."""
    place.mkdir()
    try:
        with zipfile.ZipFile(path if path.is_file() else "") as file:
            size = sum(info.file_size for info in file.infolist())
            if len(file.infolist()) > MOST or size > LARGEST:
                return Note("huge", {"size": f"{size >> 20} MiB"})
            file.extractall(place)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, OSError):
        return Note("zip", {"file": printable(path.name)})


def printable(name: str) -> str:
    """Return a name with a replacement sign for each part that UTF-8 cannot write.

    >>> printable("b\\udce4i.ipynb") == "b\\ufffdi.ipynb"
    True
    """
    return _UNENCODABLE.sub("\ufffd", name)


def printable_names(names: Iterable[str]) -> dict[str, str]:
    """Return name → printable name; a number tells apart names that differ only in what cannot be printed."""
    chosen: dict[str, str] = {}
    for name in dict.fromkeys(names):
        plain = printable(name)
        taken = sum(printable(other) == plain for other in chosen)
        chosen[name] = f"{plain} ({taken + 1})" if taken and plain != name else plain
    return chosen
