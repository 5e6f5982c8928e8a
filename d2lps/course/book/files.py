"""Writing files so that a reader, or a failure, meets the old text or the new one, never a part."""

import os
import tempfile
from pathlib import Path


def write(texts: dict[Path, str]) -> list[Path]:
    """Write the files whose text differs and return their paths: all are laid ready, then put in place."""
    ready: list[tuple[str, Path]] = []
    try:
        for path, text in texts.items():
            content = text.encode("utf-8")
            if path.is_file() and path.read_bytes() == content:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            ready.append((temporary, path))
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, path.stat().st_mode if path.exists() else 0o666 & ~_mask())
        for temporary, path in ready:
            os.replace(temporary, path)
    finally:
        for temporary, _ in ready:
            if os.path.exists(temporary):
                os.unlink(temporary)
    return [path for _, path in ready]


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
