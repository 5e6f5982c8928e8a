"""What is found in the book's sources: one thing to mend or to look at, and what mends it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

COMMAND = "python -m course.book"


class BookError(ValueError):
    """What is wrong in the book's sources or in a notebook, and the way out, in one sentence."""


@dataclass(frozen=True)
class Finding:
    """One thing to mend (``fail``) or to look at (``warn``), and the command or file that mends it."""

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
    """The remedy where files are to be edited by hand."""
    return f"edit {', '.join(dict.fromkeys(files))}"


def report(findings: list[Finding]) -> str:
    """All findings for a reader: failures first, then warnings, then how many of each."""
    count = Counter(finding.level for finding in findings)
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: finding.level)
    return "\n".join([*map(str, ordered), f"{count['fail']} to mend, {count['warn']} to look at"])
