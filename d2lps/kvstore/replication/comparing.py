"""Whether the members of a slot still hold the same bytes: a piece now and then, at the same command on both.

Two copies do not say which of them is right. So what differs is given to nobody any more, until it is loaded anew.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from d2lps.kvstore.replication.commands import State
from d2lps.kvstore.replication.messages import Check, Differ, Found, Name, View


class Comparing(State):
    """What a replica does about it. Without ``digest`` nothing is compared.

    ``digest(value, at)`` is a number for the bytes of a value from ``at`` on, and where the next piece begins, None
    where that was the last; ``spoilt(part, value, members)`` a value that nobody is given.
    """

    digest: Callable[[Any, int], tuple[int, int | None]] | None = None
    spoilt: Callable[[int, Any, tuple], Any]
    name: Name
    view: View
    follows: bool
    _command: Callable[[NamedTuple], None]
    _send: Callable[[Name, NamedTuple], None]
    _turn = 0, 0  # which piece of which part is next
    _checked = 0, 0, 0, 0  # in which view, by which command, which part was looked at last, and what was found

    @property
    def is_primary(self) -> bool:
        """Whether it is the first of the view that it knows, and has what a member has."""
        return self.view.members[:1] == (self.name,) and self.follows

    def _compare(self) -> None:
        """The next piece, where something was done since the one before: who rests compares no more."""
        if self.digest is None or not self.parts or self.seq == self._checked[1] or len(self.view.members) < 2:
            return
        part, at = self._turn if self._turn[0] < len(self.parts) else (0, 0)
        self._command(Check(part, at))
        number, following = self._found
        self._checked = self.view.number, self.seq, part, number
        self._turn = (part + 1, 0) if following is None else (part, following)

    def _check(self, check: Check) -> None:
        self._found = self.digest(self.parts[check.part].value, check.at)
        if not self.is_primary:
            self._send(self.view.members[0], Found(self.view.number, self.seq, self._found[0]))

    def _differ(self, differ: Differ) -> None:
        part = self.parts[differ.part]
        self._replace(differ.part, part._replace(value=self.spoilt(differ.part, part.value, differ.members)))

    def _on_found(self, src: Name, found: Found, now: float) -> None:
        """What a member has found by that command, beside what was found here."""
        view, seq, part, number = self._checked
        same = (found.view, found.seq) == (view, seq) and view == self.view.number and src in self.view.members
        if same and found.digest != number:
            self._command(Differ(part, (self.view.members[0], src)))

    _acts = State._acts | {Check: _check, Differ: _differ}
    _on = {Found: "_on_found"}  # noqa: RUF012
