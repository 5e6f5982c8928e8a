"""The server of the site: it compresses, and a browser that has a file gets it again only if it has changed."""

import functools
import gzip
import http.server
import threading
import urllib.request
from urllib.error import HTTPError

import pytest

from course.site.server import Handler

TEXT = "<p>gradient</p>" * 100


class Quiet(Handler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def home(tmp_path):
    (tmp_path / "page.html").write_text(TEXT, "utf-8")
    (tmp_path / "_static/python").mkdir(parents=True)
    (tmp_path / "_static/python/some.wasm").write_bytes(b"wasm")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asked(address: str, **headers: str):
    return urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60)


def test_a_page_is_compressed_for_those_who_read_that(home):
    with asked(f"{home}/page.html", **{"Accept-Encoding": "gzip"}) as answer:
        content = answer.read()
    assert len(content) < len(TEXT) / 5 and gzip.decompress(content).decode() == TEXT
    with asked(f"{home}/page.html") as answer:
        assert answer.read().decode() == TEXT and answer.headers["Content-Encoding"] is None


def test_a_page_that_has_not_changed_is_not_sent_again(home):
    with asked(f"{home}/page.html", **{"Accept-Encoding": "gzip"}) as answer:
        changed = answer.headers["Last-Modified"]
        assert answer.headers["Cache-Control"] == "no-cache"
    with pytest.raises(HTTPError) as answer:
        asked(f"{home}/page.html", **{"Accept-Encoding": "gzip", "If-Modified-Since": changed})
    assert answer.value.code == 304


def test_a_file_with_a_version_is_kept_for_good(home):
    with asked(f"{home}/_static/python/some.wasm?1a2b") as answer:
        assert answer.read() == b"wasm" and "immutable" in answer.headers["Cache-Control"]
