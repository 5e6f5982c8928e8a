"""The button above a chapter that shows its pictures and predictions one by one; ``theme/show.js`` does it."""

from html import escape

from d2lps.messages import text_in

SCRIPT, LOOK = "show.js", "show.css"


def button(language: str) -> str:
    """Return the button, which stays hidden without scripts, or if a chapter has nothing to show."""
    title = escape(text_in(language, "site.show-keys"), quote=True)
    return (
        f'<button type="button" class="show" title="{title}" hidden>{escape(text_in(language, "site.show"))}</button>'
    )
