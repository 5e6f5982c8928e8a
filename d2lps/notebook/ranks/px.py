"""``%%px`` as a reader wants it: rank 0 speaks first, an error is said once, and Ctrl-C stops everybody.

ipyparallel's own magic with its options; ours is what happens while a cell runs, and what is shown of it.
"""

import os
import re
import sys
import time
from collections.abc import Mapping

from ipyparallel import AsyncResult
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.error import RemoteError
from IPython.display import publish_display_data

from d2lps.carriers.rendezvous import ProcessesError
from d2lps.messages import counted, language, speak, text
from d2lps.notebook.ranks.rank import begin
from d2lps.notebook.ranks.waiting import brief

LET_GO = 0.6  # seconds that the ranks of an interrupted cell have
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Px(ParallelMagics):
    """``%px`` and ``%%px`` for these ranks."""

    def __init__(self, shell, ranks):
        super().__init__(shell, ranks.view)
        self.ranks, self.cells, self.view.block = ranks, 0, True

    def parallel_execute(self, cell, block=None, groupby="type", save_name=None, **_):
        """Run a cell and show what comes of it: what ``%px`` and ``%%px`` come to."""
        try:
            self.ranks.ensure_usable()
        except ProcessesError as error:
            raise brief(error) from None
        if self.view.targets == list(range(len(self.ranks))):
            self.cells += 1
            self.view.apply_async(begin, self.cells, language())
        else:
            self.view.apply_async(speak, language())
        self.last_result = result = self.view.execute(cell, silent=False, block=False)
        if save_name:
            self.shell.user_ns[save_name] = result
        if not (self.view.block if block is None else block):
            return result
        parts = dict(zip(result._targets, result.split(), strict=True))
        first = Shown(next(iter(parts.values())))
        try:
            self._follow(parts, first)
        except KeyboardInterrupt:
            self.ranks.interrupt(self._busy(parts))
            self._follow(parts, first, LET_GO)
            self._show(parts, first)
            busy = self._busy(parts)
            sentence = text("ranks.wait", ranks=spans(busy)) if busy else text("ranks.let-go")
            raise brief(KeyboardInterrupt(sentence)) from None
        self._show(parts, first)
        failed = {rank: part for rank, part in parts.items() if not part.done() or part.exception()}
        if failed:
            raise RanksFailed({rank: raised_by(part, self.ranks.again) for rank, part in failed.items()})

    def _busy(self, parts: Mapping[int, AsyncResult]) -> list[int]:
        return [rank for rank, part in parts.items() if not part.done() and self.ranks.alive(rank)]

    def _follow(self, parts: Mapping[int, AsyncResult], first: "Shown", seconds: float = float("inf")) -> None:
        """Wait until nobody is busy, and show meanwhile what the first rank says."""
        until = time.monotonic() + seconds
        while (busy := self._busy(parts)) and time.monotonic() < until:
            parts[busy[0]].wait(0.1)
            first.show()
            counted.reached = self.ranks.reached  # for the line that says how long the cell has been running
        counted.reached = None

    def _show(self, parts: Mapping[int, AsyncResult], first: "Shown") -> None:
        for part in parts.values():
            if part.done():
                part.wait_for_output(1)  # what a rank printed may arrive after its result
        first.show()
        for name in "stdout", "stderr":
            print_others(name, {rank: part[name] for rank, part in parts.items()})
        if first.part["execute_result"]:
            publish(first.part["execute_result"])
        print_others("stdout", {rank: plain(part["execute_result"]) for rank, part in parts.items()})


class Shown:
    """What one rank prints and displays, shown as it comes, as if the notebook did it."""

    def __init__(self, part: AsyncResult):
        self.part, self.printed, self.displayed = part, {"stdout": "", "stderr": ""}, 0

    def show(self) -> None:
        for name, before in self.printed.items():
            now = self.printed[name] = self.part[name]
            if now.startswith(before):
                new = now[len(before) :]
            else:  # a progress bar has written over its line
                new = "\r" + now[os.path.commonprefix([before, now]).rfind("\n") + 1 :]
            if new:
                print(new, end="", file=getattr(sys, name), flush=True)
        while self.displayed < len(self.part["outputs"]):
            publish(self.part["outputs"][self.displayed])
            self.displayed += 1


def publish(shown: Mapping) -> None:
    """Display here what a rank displayed."""
    data = dict(shown["data"])
    if "text/html" in data:
        # A widget would hang on the rank; its HTML stands on its own, here and in the notebook's file.
        data.pop("application/vnd.jupyter.widget-view+json", None)
    publish_display_data(data, shown["metadata"])


def plain(result: Mapping | None) -> str:
    """The text of a cell's last expression, if text is all there is to it."""
    data = result["data"] if result else {}
    return data["text/plain"] + "\n" if list(data) == ["text/plain"] else ""


def print_others(name: str, texts: Mapping[int, str]) -> None:
    """What the other ranks say, where it is not what the first says.

    The number of the process that runs the cell, which stands in every warning, makes no difference.
    """
    nameless = {rank: re.sub(r"\bipykernel_\d+\b", "ipykernel", said) for rank, said in texts.items()}
    first = next(iter(nameless.values()))
    for said, who in grouped(nameless):
        if said and said != first:
            said = texts[who[0]].removesuffix("\n")
            print(f"[{spans(who)}]", said, sep="\n" if "\n" in said else " ", file=getattr(sys, name))


def grouped(texts: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """Each text once, with the ranks that say it."""
    return [(text, [rank for rank in texts if texts[rank] == text]) for text in dict.fromkeys(texts.values())]


def spans(ranks: list[int]) -> str:
    """Ranks for a reader: ``0–2, 5``."""
    starts = [rank for rank in ranks if rank - 1 not in ranks]
    ends = [rank for rank in ranks if rank + 1 not in ranks]
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True))


class RanksFailed(ProcessesError):
    """What ranks raised in one cell, each sentence once. ``errors``: rank → its sentence and its traceback."""

    def __init__(self, errors: Mapping[int, tuple[str, str]]):
        self.errors = dict(errors)
        # Sentences that differ in nothing but the rank that speaks are one.
        sentences = {rank: re.sub(rf"\brank( ?){rank}\b", r"rank\1…", errors[rank][0]) for rank in errors}
        self.told = [
            (f"[{spans(who)}] {errors[who[0]][0]}", places(errors[who[0]][1])) for _, who in grouped(sentences)
        ]
        super().__init__("\n".join(sentence for sentence, _ in self.told))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: where in the cell, and who says what."""
        shown, before = [], []
        for sentence, where in self.told:
            shown += [*(where if where != before else ()), sentence]
            before = where
        return shown


def raised_by(part: AsyncResult, again: str) -> tuple[str, str]:
    """What a rank raised: its sentence and its traceback."""
    if not part.done():
        return text("ranks.this-gone", again=again), ""
    raised = part.exception()
    if isinstance(raised, RemoteError):
        sentence = re.sub(r" \(\d+\.py, line \d+\)$", "", raised.evalue)  # a syntax error names a file of its own
        return f"{raised.ename}: {sentence}", raised.traceback or ""
    return f"{type(raised).__name__}: {raised}", ""


def places(traceback: str) -> list[str]:
    """The lines of a traceback that stand in the cell itself, without the way through the libraries."""
    lines, inside = [], False
    for line in traceback.splitlines():
        bare = COLOURS.sub("", line)
        if frame := re.match(r" *Cell In.*?, line \d+(?:, (in .*))?", bare):
            inside = True
            lines += filter(None, [frame[1]])
        elif not bare.strip() or bare.startswith("SyntaxError: "):
            inside = False
        elif inside:
            lines.append(line)
    return lines
