"""The site of a small book, without what is the same in every book and takes seconds to make."""

import pytest

from course.site import bandwidths, reference
from course.site.pages import Site


def bare(patch: pytest.MonkeyPatch) -> None:
    """Leave out of a site the pages of the package, the bandwidths on their page, and the race of the first page."""
    patch.setattr(reference, "entries", list)
    patch.setattr(bandwidths, "page", lambda language: "<h1>…</h1>")
    patch.setattr(Site, "race", ("", {}))
