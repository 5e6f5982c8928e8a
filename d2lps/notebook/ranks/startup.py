"""What a kernel of ``make lab`` runs first, among the reader's own names.

``%%px`` then says how to start ranks, also where nothing else has been run since the kernel was restarted.
"""

import contextlib as _contextlib

with _contextlib.suppress(ImportError):  # in the kernel of another Python
    import d2lps as _d2lps  # noqa: F401
