"""What a learner is told about an answer: a sentence, a hint, and the attempt to watch."""

from dataclasses import dataclass
from html import escape

from d2lps.messages import html_language, text
from d2lps.notebook.shown import Late
from d2lps.trace import Trace


@dataclass(frozen=True, repr=False)
class Verdict:
    """The judgement of one attempt at an exercise, in the language in force when it was made.

    In a notebook it shows itself, with the player of the attempt under it; elsewhere ``print`` it.

    Parameters
    ----------
    passed : bool
        Whether the answer is right.
    sentence : str
        What was measured against the bound, or in which case and step the attempt failed, what was expected
        and what was got.
    hint : str
        The hint for this mistake; empty if passed.
    ladder : tuple of str
        The exercise's general hints, from vague to nearly the answer. A notebook has each behind a line to be
        opened, the next within the one before; printed, only their number is told.
    mistake : str or None
        The mistake's name, such as ``"all-on-one"``; None if passed.
    trace : Trace or None
        The predicted trace of the attempt, as far as it could be played.
    """

    passed: bool
    sentence: str
    hint: str = ""
    ladder: tuple[str, ...] = ()
    mistake: str | None = None
    trace: Trace | None = None

    def __str__(self) -> str:
        lines = [self._mark(), *self.sentence.split("\n")]
        if self.hint:
            lines += ["", _before(text("checks.hint")) + self.hint]
        if self.ladder:
            lines += ["", text("checks.ladder", count=len(self.ladder), last=len(self.ladder) - 1)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{self._mark()}</strong></p>"]
        parts += [f"<p>{_html(line)}</p>" for line in self.sentence.split("\n") if line]
        if self.hint:
            parts.append(f"<p><strong>{_before(escape(text('checks.hint')))}</strong>{_html(self.hint)}</p>")
        if self.ladder:
            parts.append(self._folded())
        # The text takes the page's own colour, so that it is readable on light and dark.
        edge = "solid #2e9e6b" if self.passed else "double #d9822b"
        style = f"border-left:.3em {edge};padding-left:.9em;max-width:48em"
        return f'<div class="d2lps-verdict" lang="{html_language()}" style="{style}">{"".join(parts)}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(Late(lambda: {"text/plain": str(self), "text/html": self._repr_html_()}))
        if self.trace is None:
            return
        try:
            from d2lps.view.player import watch
        except ImportError:  # the verdict stands without the player, which needs more than the core
            return
        display(watch(self.trace))

    def _folded(self) -> str:
        """The ladder, of which nobody sees a rung by accident: who opens one finds the next one, closed."""
        html = ""
        for number, rung in reversed([*enumerate(self.ladder, 1)]):
            label = escape(text("checks.show-hint", number=number, count=len(self.ladder)))
            html = f"<details><summary>{label}</summary><p>{_html(rung)}</p>{html}</details>"
        return html

    def _mark(self) -> str:
        return f"✓ {text('checks.right')}" if self.passed else f"✗ {text('checks.not-yet')}"


def _before(label: str) -> str:
    """A label with the space after it that its language writes: a full-width colon brings its own."""
    return label if label.endswith("：") else label + " "


def _html(said: str) -> str:
    """A sentence as HTML, with what stands in backticks as code."""
    parts = escape(said, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
