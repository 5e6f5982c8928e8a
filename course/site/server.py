"""The server of ``make serve``: it compresses files, and lets browsers keep them.

A file with a version behind its address (``pyodide.asm.wasm?1a2b3c4d``) never changes. A browser that has another file
asks if it has changed, and gets it only then.
"""

import gzip
import http.server
import io
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

COMPRESSED = {".html", ".css", ".js", ".mjs", ".json", ".svg", ".wasm", ".ipynb"}
YEAR = 365 * 24 * 3600  # seconds


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers for the files of one folder."""

    def end_headers(self) -> None:
        """Add how long a browser may keep the file."""
        kept = f"max-age={YEAR}, immutable" if "?" in self.path and "/python/" in self.path else "no-cache"
        self.send_header("Cache-Control", kept)
        super().end_headers()

    def send_head(self) -> "io.BytesIO | BinaryIO | None":
        """Send the headers, and return the content: compressed for who takes it and has no older one."""
        path = Path(self.translate_path(self.path))
        takes = "gzip" in self.headers.get("Accept-Encoding", "") and "If-Modified-Since" not in self.headers
        if not (takes and path.suffix in COMPRESSED and path.is_file()):
            return super().send_head()
        changed = path.stat().st_mtime
        content = _compressed(path, changed)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", self.date_time_string(int(changed)))
        self.send_header("Vary", "Accept-Encoding")
        self.end_headers()
        return io.BytesIO(content)


@cache
def _compressed(path: Path, changed: float) -> bytes:
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
