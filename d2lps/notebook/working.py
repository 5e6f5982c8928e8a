"""What a notebook says while a cell takes long: for how long it has been running, and how far it has come.

It goes away when the cell has ended. ``D2LPS_PROGRESS=0`` keeps it away altogether.
"""

import os
import threading
import time
from html import escape

from d2lps.messages import counted, html_language, text

AFTER, EVERY = 3.0, 0.5  # seconds


class Working:
    """A line below the cell that runs, in a thread of its own.

    Parameters
    ----------
    shell : InteractiveShell
        The notebook's; it says when cells begin and end.
    """

    def __init__(self, shell):
        self._done, self._thread = threading.Event(), None
        shell.events.register("pre_run_cell", self.begin)
        shell.events.register("post_run_cell", self.end)

    def begin(self, info: object = None) -> None:
        """A cell begins."""
        self.end()
        if os.environ.get("D2LPS_PROGRESS") == "0":
            return
        counted.reached = None  # a loop that was broken off may have left it
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tell, args=(self._done, time.monotonic()), daemon=True)
        self._thread.start()

    def end(self, result: object = None) -> None:
        """It has ended."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(2)
            self._thread = None

    def _tell(self, done: threading.Event, began: float) -> None:
        from IPython.display import display

        if done.wait(AFTER):
            return
        handle = display(said(time.monotonic() - began), raw=True, display_id=True)
        while not done.wait(EVERY):
            handle.update(said(time.monotonic() - began), raw=True)
        handle.update({"text/plain": "", "text/html": ""}, raw=True)


def said(seconds: float) -> dict[str, str]:
    """What is said after so many seconds."""
    now = counted.reached
    if now is None or not now.of:
        plain, bar = text("working.since", seconds=round(seconds)), "<progress></progress>"
    else:
        plain = text("working.reached", seconds=round(seconds), done=now.done, of=now.of)
        bar = f'<progress value="{now.done}" max="{now.of}"></progress>'
    shown = bar.replace("<progress", f'<progress aria-label="{escape(plain)}"')
    return {"text/plain": plain, "text/html": f'<p lang="{html_language()}">{shown} {escape(plain)}</p>'}
