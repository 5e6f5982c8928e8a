"""The files of a class: which learner handed in what, and when. They are read, never changed.

A learner is an entry in the folder of the class; what Canvas, Moodle or Brightspace has named after one person belongs
together, also in a zip of the whole class.
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
WHOLE = 100  # times as many of both in a zip of a whole class
NOTEBOOK = re.compile(r"\.ipynb(\.json|\.txt)?$", re.I)  # some browsers add a second ending
LISTED_FILES = 5  # other files named in a note
LEARNERS = tuple(
    re.compile(pattern, re.S)
    for pattern in (
        r"(?P<back>(?P<late>LATE_)?(?P<name>anon_(?P<id>[^_/]+))_[1-9]\d+_)[^/]+",  # Canvas, anonymous
        r"(?P<back>(?P<name>[^_/]+)_(?P<late>LATE_)?(?P<id>[1-9]\d+)_[1-9]\d+_)[^/]+",  # Canvas
        r"(?P<back>(?P<name>[^/]+?)_(?P<id>\d+)_assignsubmission_[a-z]+_?)(.*)",  # Moodle
        r"(?P<back>\d+-\d+ - (?P<name>[^/]+?) - \w+\.? \d+, \d{4} \d{3,4} [AP]M( - )?)(.*)",  # Brightspace
    )
)
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
    number in Canvas or Moodle; ``late`` the number of days after the due time, rounded up, or None if it is unknown;
    ``back`` the place of a page for the learner in a zip that Canvas, Moodle or Brightspace takes back.
    """

    learner: str
    path: Path
    home: Path | None = None
    name: str = ""
    id: str = ""
    late: int | None = None
    note: Note | None = None
    back: str = ""


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
        if match := self.match(path):
            parts = {name: value or "" for name, value in match.groupdict().items()}
            name = parts.get("name") or parts.get("id") or path
            return name, parts.get("id", ""), bool(parts.get("late"))
        top = Path(path).parts[0]
        return (top if top != path else re.sub(r"(?i)\.zip$", "", NOTEBOOK.sub("", top))), "", False

    def match(self, path: str) -> re.Match | None:
        """Return how a path names a learner; None if only its folder or file does."""
        patterns = (self.names, *LEARNERS) if self.names else LEARNERS
        return next(filter(None, (pattern.fullmatch(path) for pattern in patterns)), None)

    def unpack(self, path: Path, times: int = 1) -> tuple[Path, Note | None]:
        """Unpack a zip into a new folder; return the folder, and a note if that cannot be done."""
        place = self.unpacked / str(len([*self.unpacked.iterdir()]))
        return place, _unpack(path, place, times)

    def late(self, name: str, id: str, marked: bool) -> int | None:
        """Return how many days late a learner is, rounded up: at least 1 if marked so; None if that is not known."""
        time = self.handed_in(name, id) if self.due and self.handed_in else None
        days = max(0, math.ceil((time.timestamp() - self.due.timestamp()) / 86400)) if time else None
        return max(days or 0, 1) if marked else days


def back(entry: Path) -> str:
    """Return where a page for a learner belongs in a zip with the names of the download; nothing for other names.

    >>> back(Path("nguyenlan_LATE_4711_8801_ring-1.ipynb"))
    'nguyenlan_LATE_4711_8801_feedback.html'
    """
    match = next(filter(None, (pattern.fullmatch(entry.name) for pattern in LEARNERS)), None)
    return (f"{entry.name}/" if entry.is_dir() else match["back"]) + "feedback.html" if match else ""


def find(folder: Path, out: Path | None, sorter: Sorter, alone: bool = False) -> list[Task]:
    """Return the notebooks of all learners below a folder, sorted by path, and notes on other files.

    ``alone`` means that the folder belongs to one learner. Names with a leading dot and the folder ``out`` are left
    out. Names that are not UTF-8 have replacement signs; two ids with one name stay two learners. Raises OSError.
    """
    if alone:
        return _files(folder, folder, folder.name, "", sorter)
    tasks = [task for entry in _entries(folder, out, sorter) for task in _tasks(entry, entry.parent, sorter)]
    notebooks = {(task.learner, task.id) for task in tasks if task.name}
    for number, task in enumerate(tasks):  # a text beside the notebook in Moodle, or another upload in Canvas
        if task.note and task.note.key == "no-notebooks" and (task.learner, task.id) in notebooks:
            tasks[number] = replace(task, note=replace(task.note, key="beside"))
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


def _entries(folder: Path, out: Path | None, sorter: Sorter) -> list[Path]:
    """Return the learners' folders and files in a folder or a zip; a zip of a whole class is unpacked."""
    if folder.is_dir():
        entries = [entry for entry in _visible(folder) if not (out and within(entry, out))]
        return [inner for entry in entries for inner in (_opened(entry, sorter) or [entry])]
    return _opened(folder, sorter, given=True) or [folder]


def _opened(path: Path, sorter: Sorter, given: bool = False) -> list[Path]:
    """Return what is in a zip of a whole class; nothing if this is none, or cannot be unpacked.

    A zip is that of a class if it is ``given`` in the place of a folder, or has files or folders named after learners.
    """
    if not _is_zip(path) or path.is_symlink() or sorter.match(path.name):
        return []
    try:
        with zipfile.ZipFile(path if path.is_file() else "") as file:
            names = file.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return []
    if not given and not any(sorter.match(part) for name in names for part in name.split("/")[:2]):
        return []
    place, note = sorter.unpack(path, WHOLE)
    entries = [] if note else _visible(place)
    while len(entries) == 1 and entries[0].is_dir() and not sorter.match(entries[0].name):  # a folder around the class
        inner = _visible(entries[0])
        if not inner or any(NOTEBOOK.search(each.name) and not sorter.match(each.name) for each in inner):
            break
        entries = inner
    return entries


def _visible(folder: Path) -> list[Path]:
    return [entry for entry in sorted(folder.iterdir()) if entry.name[0] != "." and entry.name != "__MACOSX"]


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


def _tasks(entry: Path, folder: Path, sorter: Sorter) -> Iterator[Task]:
    """Yield what one entry of the folder of the class contains; other files than a learner's have no learner."""
    name, id, marked = sorter.who(entry.name)
    if entry.is_symlink():
        yield Task(name, entry, id=id, note=Note("link", {"file": printable(entry.name)}))
    elif entry.is_dir() or _is_zip(entry):
        yield from _files(entry, folder, name, id, sorter)
    elif NOTEBOOK.search(entry.name):
        yield Task(name, entry, None, entry.name, id, sorter.late(name, id, marked), back=back(entry))
    elif sorter.match(entry.name):
        yield Task(
            name, entry, None, "", id, back=back(entry), note=Note("no-notebooks", {"files": printable(entry.name)})
        )
    else:
        yield Task("", entry)


def _files(entry: Path, folder: Path, name: str, id: str, sorter: Sorter) -> list[Task]:
    """Return the notebooks of a learner's folder or zip, and a note on other files in it."""
    tasks, others = [], []
    for path in [*_below(entry)] if entry.is_dir() else [entry]:
        shown = str(path.relative_to(folder))
        name, id, marked = sorter.who(shown) if sorter.names else (name, id, sorter.who(entry.name)[2])
        task = Task(name, path, entry, shown, id, sorter.late(name, id, marked), back=back(entry))
        if not within(path, entry):
            tasks.append(replace(task, name="", note=Note("link", {"file": printable(shown)})))
        elif _is_zip(path):
            place, note = sorter.unpack(path)
            tasks += [replace(task, name="", note=note)] if note else []
            for inner in () if note else _below(place):
                inside = f"{shown}/{inner.relative_to(place)}"
                if NOTEBOOK.search(inner.name):
                    tasks.append(replace(task, path=inner, home=place, name=inside))
                else:
                    others.append(inside)
        elif NOTEBOOK.search(path.name):
            tasks.append(task)
        else:
            others.append(str(path.relative_to(entry)))
    if others or not tasks:
        note = _beside(others, "beside" if tasks else "no-notebooks") if others else Note("empty")
        tasks.append(Task(name, entry, entry, "", id, note=note, back=back(entry)))
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


def _unpack(path: Path, place: Path, times: int) -> Note | None:
    """Unpack the files of a zip into a new folder; return a note if that cannot be done."""
    place.mkdir()
    try:
        with zipfile.ZipFile(path if path.is_file() else "") as file:
            size = sum(info.file_size for info in file.infolist())
            if len(file.infolist()) > times * MOST or size > times * LARGEST:
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
