"""Python for browsers: the Pyodide package from the npm registry, kept in ``.tools/``.

``python -m course.site.pyodide`` fetches it; ``.ci/setup book`` does so. Without it the site has no "try it".
"""

import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

from course.book.findings import BookError
from d2lps.messages import allow_any_letter

VERSION = "314.0.7"  # of Python 3.14
SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
ADDRESS = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
SECONDS, ATTEMPTS = 60, 3


def folder(root: Path) -> Path:
    """Return the folder that has Pyodide's files, or will have them."""
    return root / ".tools" / f"pyodide-{VERSION}"


def is_there(root: Path) -> bool:
    """Return whether all files have been fetched."""
    return all((folder(root) / name).is_file() for name in FILES)


def fetch(root: Path) -> None:
    """Fetch the package unless it is there; raise BookError if that fails or another package comes."""
    if is_there(root):
        return
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(ADDRESS, timeout=SECONDS) as answer:
                package = answer.read()
            break
        except OSError as error:
            if attempt == ATTEMPTS - 1:
                raise BookError(f"{ADDRESS} cannot be fetched: {error}; check the network") from None
    if hashlib.sha256(package).hexdigest() != SHA256:
        raise BookError(f"{ADDRESS} is not the package that is expected; compare SHA256 in course/site/pyodide.py")
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        contents = {name: archive.extractfile(f"package/{name}").read() for name in FILES}
    folder(root).mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder(root) / name).write_bytes(content)


if __name__ == "__main__":
    allow_any_letter()
    try:
        fetch(Path.cwd())
    except BookError as error:
        sys.exit(str(error))
