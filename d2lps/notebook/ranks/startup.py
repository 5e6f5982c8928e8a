"""Code that a kernel of ``make lab`` runs first, in the reader's namespace.

It lets ``%%px`` say how to start ranks, even if nothing else has run since the kernel was restarted.
"""

import contextlib as _contextlib

with _contextlib.suppress(ImportError):  # in the kernel of another Python
    import d2lps as _d2lps  # noqa: F401
