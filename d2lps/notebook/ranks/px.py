"""The ``%%px`` magic: rank 0's output comes first, an error is shown once, and Ctrl-C stops all ranks.

It is ipyparallel's magic with its options, except for what happens while a cell runs and what is shown of it.
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
from d2lps.messages import language, speak, text
from d2lps.notebook.ranks.rank import begin, brief

LET_GO = 0.6  # seconds that the ranks of an interrupted cell have
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Px(ParallelMagics):
    """``%px`` and ``%%px`` for these ranks."""

    def __init__(self, shell, ranks):
        super().__init__(shell, ranks.view)
        self.ranks, self.cells, self.view.block = ranks, 0, True

    def parallel_execute(self, cell, block=None, groupby="type", save_name=None, **_):
        """Run a cell of ``%px`` or ``%%px`` and show its output."""
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
            raise RanksFailed({rank: error_of(part, self.ranks.again) for rank, part in failed.items()})

    def _busy(self, parts: Mapping[int, AsyncResult]) -> list[int]:
        return [rank for rank, part in parts.items() if not part.done() and self.ranks.alive(rank)]

    def _follow(self, parts: Mapping[int, AsyncResult], first: "Shown", seconds: float = float("inf")) -> None:
        """Wait until no rank is busy, and show the output of the first rank meanwhile."""
        until = time.monotonic() + seconds
        while (busy := self._busy(parts)) and time.monotonic() < until:
            parts[busy[0]].wait(0.1)
            first.show()

    def _show(self, parts: Mapping[int, AsyncResult], first: "Shown") -> None:
        for part in parts.values():
            if part.done():
                part.wait_for_output(1)  # the output of a rank may arrive after its result
        first.show()
        for name in "stdout", "stderr":
            print_others(name, {rank: part[name] for rank, part in parts.items()})
        if first.part["execute_result"]:
            publish(first.part["execute_result"])
        print_others("stdout", {rank: plain(part["execute_result"]) for rank, part in parts.items()})


class Shown:
    """The output of one rank, shown as it arrives, as if the notebook had printed and displayed it."""

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


def publish(output: Mapping) -> None:
    """Display an object that a rank displayed."""
    data = dict(output["data"])
    if "text/html" in data:
        # A widget would need the rank's kernel; its HTML works alone, here and in the notebook's file.
        data.pop("application/vnd.jupyter.widget-view+json", None)
    publish_display_data(data, output["metadata"])


def plain(result: Mapping | None) -> str:
    """Return the text of a cell's last expression, if it has no other form."""
    data = result["data"] if result else {}
    return data["text/plain"] + "\n" if list(data) == ["text/plain"] else ""


def print_others(name: str, texts: Mapping[int, str]) -> None:
    """Print the output of the other ranks if it differs from that of the first.

    The number of the process, which every warning contains, does not count as a difference.
    """
    comparable = {rank: re.sub(r"\bipykernel_\d+\b", "ipykernel", output) for rank, output in texts.items()}
    first = next(iter(comparable.values()))
    for common, ranks in grouped(comparable):
        if common and common != first:
            output = texts[ranks[0]].removesuffix("\n")
            print(f"[{spans(ranks)}]", output, sep="\n" if "\n" in output else " ", file=getattr(sys, name))


def grouped(texts: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """Return each text once, with its ranks."""
    return [(text, [rank for rank in texts if texts[rank] == text]) for text in dict.fromkeys(texts.values())]


def spans(ranks: list[int]) -> str:
    """Write ranks for a reader: ``0–2, 5``."""
    starts = [rank for rank in ranks if rank - 1 not in ranks]
    ends = [rank for rank in ranks if rank + 1 not in ranks]
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True))


class RanksFailed(ProcessesError):
    """The errors of ranks in one cell, each sentence once. ``errors``: rank → its sentence and its traceback."""

    def __init__(self, errors: Mapping[int, tuple[str, str]]):
        self.errors = dict(errors)
        # Sentences that differ only in the number of their own rank count as the same.
        sentences = {rank: re.sub(rf"\brank( ?){rank}\b", r"rank\1…", errors[rank][0]) for rank in errors}
        self.parts = [
            (f"[{spans(ranks)}] {errors[ranks[0]][0]}", places(errors[ranks[0]][1])) for _, ranks in grouped(sentences)
        ]
        super().__init__("\n".join(sentence for sentence, _ in self.parts))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback: places in the cell, and sentences."""
        lines: list[str] = []
        before: list[str] = []
        for sentence, place in self.parts:
            lines += [*(place if place != before else ()), sentence]
            before = place
        return lines


def error_of(part: AsyncResult, again: str) -> tuple[str, str]:
    """Return the sentence and the traceback of a rank's error."""
    if not part.done():
        return text("ranks.this-gone", again=again), ""
    raised = part.exception()
    if isinstance(raised, RemoteError):
        sentence = re.sub(r" \(\d+\.py, line \d+\)$", "", raised.evalue)  # a syntax error names a file of its own
        return f"{raised.ename}: {sentence}", raised.traceback or ""
    return f"{type(raised).__name__}: {raised}", ""


def places(traceback: str) -> list[str]:
    """Return the lines of a traceback that are in the cell itself, without those in libraries."""
    lines: list[str] = []
    inside = False
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
