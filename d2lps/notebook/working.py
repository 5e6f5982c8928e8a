"""The line below a slow cell: how long it has been running, and its progress.

It disappears when the cell has ended. ``D2LPS_PROGRESS=0`` turns it off.
"""

import os
import threading
import time
from html import escape

from d2lps.messages import counted, html_language, text

AFTER, EVERY = 2.0, 0.5  # seconds


class Working:
    """A line below the cell that runs, in a thread of its own.

    Args:
        shell (InteractiveShell): The notebook's shell, with its events.
    """

    def __init__(self, shell):
        self._done, self._thread = threading.Event(), None
        shell.events.register("pre_run_cell", self.begin)
        shell.events.register("post_run_cell", self.end)

    def begin(self, info: object = None) -> None:
        """Start the line for a cell."""
        self.end()
        if os.environ.get("D2LPS_PROGRESS") == "0":
            return
        counted.reached = None  # an interrupted loop may have left it
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tell, args=(self._done, time.monotonic()), daemon=True)
        self._thread.start()

    def end(self, result: object = None) -> None:
        """End the line."""
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
    """Return the line after so many seconds, as text and HTML."""
    now = counted.reached
    if now is None or not now.of:
        plain, bar = text("working.since", seconds=round(seconds)), "<progress></progress>"
    else:
        plain = text("working.reached", seconds=round(seconds), done=now.done, of=now.of)
        bar = f'<progress value="{now.done}" max="{now.of}"></progress>'
    shown = bar.replace("<progress", f'<progress aria-label="{escape(plain)}"')
    return {"text/plain": plain, "text/html": f'<p lang="{html_language()}">{shown} {escape(plain)}</p>'}
