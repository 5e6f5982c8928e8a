"""The fields of a prediction in a notebook: one for each number, a button to commit, a sentence for each bad entry."""

from collections.abc import Callable
from html import escape

import ipywidgets

from d2lps.messages import named, text
from d2lps.notebook.entries import PredictionError

WIDE = {"description_width": "10em"}  # so that the fields stand below one another


class Fields(ipywidgets.VBox):
    """What a reader fills in.

    The entries are texts, not ``FloatText``: that begins with a zero that nobody has entered, and takes what is no
    number for the last one that was.

    Parameters
    ----------
    prediction : d2lps.notebook.predict.Prediction
        What is asked, and who takes the guess.
    """

    def __init__(self, prediction):
        self._prediction = prediction
        self.entries = {
            what: ipywidgets.Text(
                description=named(what), continuous_update=True, style=WIDE, layout=ipywidgets.Layout(width="18em")
            )
            for what in prediction.asked
        }
        self.button = ipywidgets.Button(layout=ipywidgets.Layout(width="auto", align_self="flex-start"))
        self.said = ipywidgets.HTML()
        self.button.on_click(lambda _: self._pressed())
        rows = [
            ipywidgets.HBox([self.entries[what], ipywidgets.Label(unit)]) for what, unit in prediction.asked.items()
        ]
        super().__init__([*rows, self.button, self.said])
        self._show()

    def _pressed(self) -> None:
        if self._prediction.guess is not None and self.button.description == text("predict.again"):
            self._open(True)
            return
        wrong, guess = [], {}
        for what, field in self.entries.items():
            try:
                guess[what] = self._prediction.read(what, field.value)
            except PredictionError as error:
                wrong.append(str(error))
        if wrong:
            self.said.value = "".join(f'<p role="alert" style="margin:0">✗ {escape(each)}</p>' for each in wrong)
            return
        self._prediction.commit(guess)
        self._show()

    def _show(self) -> None:
        """The guess, closed, or empty fields."""
        own = self._prediction.guess
        for what, field in self.entries.items():
            field.value = f"{own[what]:.12g}" if own else field.value
        self._open(own is None)
        self.said.value = f'<p style="margin:0">{escape(self._prediction.said())}</p>'

    def _open(self, open: bool) -> None:
        for field in self.entries.values():
            field.disabled = not open
        self.button.description = text("predict.commit" if open else "predict.again")


def bundle(prediction) -> Callable[[], dict]:
    """Gives what a notebook shows of it: the fields, and the sentence where there is no kernel to fill them in."""
    fields = Fields(prediction)

    def made() -> dict:
        own = fields._repr_mimebundle_()
        view = {kind: value for kind, value in own.items() if "widget-view" in kind}
        return view | {"text/plain": repr(prediction), "text/html": prediction._repr_html_()}

    return made
