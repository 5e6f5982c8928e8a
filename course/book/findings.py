"""Findings in the sources of the book, each with its remedy."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

COMMAND = "python -m course.book"


class BookError(ValueError):
    """An error in the sources of the book or in a notebook; its sentence names the way out."""


@dataclass(frozen=True)
class Finding:
    """A thing to mend (``fail``) or to look at (``warn``), and the command or file that mends it."""

    level: str
    check: str
    section: str
    languages: tuple[str, ...]
    message: str
    remedy: str

    def __str__(self) -> str:
        languages = f" [{' '.join(self.languages)}]" if self.languages else ""
        return f"{self.level}  {self.section}{languages}  {self.check}: {self.message}\n      → {self.remedy}"


def edit(files: Iterable[str]) -> str:
    """Return the remedy for files that have to be edited by hand."""
    return f"edit {', '.join(dict.fromkeys(files))}"


def report(findings: list[Finding]) -> str:
    """Return all findings as text: failures, warnings, and their numbers."""
    count = Counter(finding.level for finding in findings)
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: finding.level)
    return "\n".join([*map(str, ordered), f"{count['fail']} to mend, {count['warn']} to look at"])
