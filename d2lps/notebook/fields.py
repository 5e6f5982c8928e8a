"""The fields of a prediction in a notebook: one for each number, a button, and a sentence for each bad entry."""

from collections.abc import Callable
from html import escape

import ipywidgets

from d2lps.messages import named, text
from d2lps.notebook.predict_page import PredictionError
from d2lps.view.player import has_front_end


class Fields(ipywidgets.VBox):
    """The fields that a reader fills in.

    The entries are ``Text``, not ``FloatText``, which starts with a zero that the reader has not entered, and replaces
    an entry that is not a number by the last number.

    Args:
        prediction (d2lps.notebook.predict.Prediction): The prediction that takes the guess.
    """

    def __init__(self, prediction):
        self._prediction = prediction
        # Labels of one width, so that the fields are aligned.
        look = {"style": {"description_width": "10em"}, "layout": ipywidgets.Layout(width="18em")}
        self.entries = {
            item: ipywidgets.Text(description=named(item), continuous_update=True, **look) for item in prediction.asked
        }
        self.button = ipywidgets.Button(layout=ipywidgets.Layout(width="auto", align_self="flex-start"))
        self.status = ipywidgets.HTML()
        self.button.on_click(lambda _: self._pressed())
        units = map(ipywidgets.Label, prediction.asked.values())
        rows = [ipywidgets.HBox(row) for row in zip(self.entries.values(), units, strict=True)]
        super().__init__([*rows, self.button, self.status])
        self._show()

    def _pressed(self) -> None:
        if self._prediction.guess is not None and self.button.description == text("predict.again"):
            self._open(True)
            return
        errors, guess = [], {}
        for item, field in self.entries.items():
            try:
                guess[item] = self._prediction.read(item, field.value)
            except PredictionError as error:
                errors.append(str(error))
        if errors:
            self.status.value = "".join(f'<p role="alert" style="margin:0">✗ {escape(error)}</p>' for error in errors)
            return
        self._prediction.commit(guess)
        self._show()

    def _show(self) -> None:
        """Show the guess in closed fields, or open empty ones."""
        guess = self._prediction.guess
        for item, field in self.entries.items():
            field.value = f"{guess[item]:.12g}" if guess else field.value
        self._open(guess is None)
        self.status.value = f'<p style="margin:0">{escape(self._prediction.said())}</p>'

    def _open(self, open: bool) -> None:
        for field in self.entries.values():
            field.disabled = not open
        self.button.description = text("predict.commit" if open else "predict.again")


def bundle(prediction) -> Callable[[], dict]:
    """Return a function that makes the forms for a notebook: fields, and a text and a page without a kernel."""
    fields = Fields(prediction)

    def forms() -> dict:
        widget = fields._repr_mimebundle_() if has_front_end() else {}
        return widget | {"text/plain": repr(prediction), "text/html": prediction._repr_html_()}

    return forms
