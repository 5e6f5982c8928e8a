"""The order of the tests and the line per minute, on four tests that do nothing."""

import json
import subprocess
import sys

import pytest
from helpers import order

TESTS = {
    "test_a.py": "def test_short(): pass\ndef test_long(): pass",
    "test_b.py": "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_split(n): pass",
}


@pytest.fixture
def small(tmp_path):
    """Return a function that lists the tests of a small suite in their order."""
    recorded = {
        "slow": {f"test_b.py::test_split[{n}]": 20.0 for n in (1, 2)} | {"test_a.py::test_long": 3.0},
        "units": ["test_b.py::test_split[2]"],
        "rest": {"test_a.py": order.SLOW / 2},
    }
    (tmp_path / "durations.json").write_text(json.dumps(recorded), "utf-8")
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text + "\n", "utf-8")
    (tmp_path / "conftest.py").write_text(
        f"import sys; from pathlib import Path; sys.path[:0] = [{str(order.FILE.parent)!r}]\n"
        "from helpers import order; order.FILE = Path(__file__).with_name('durations.json')\n"
        "def pytest_collection_modifyitems(items):\n    import os\n"
        "    order.Durations.read().arrange(items, os.environ.get('D2LPS_ORDER', ''), longest_first=True)\n"
        "def pytest_xdist_make_scheduler(config, log):\n    return order.Durations.read().scheduler(config, log)\n"
        "def pytest_configure(config):\n    config.addinivalue_line('markers', 'slow: slow')\n",
        "utf-8",
    )

    def listed(*options, seed=""):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PATH": "", "D2LPS_ORDER": seed}, capture_output=True, text=True, timeout=60
        )
        return [line for line in done.stdout.splitlines() if "::" in line or "passed" in line]

    return listed


def test_longest_unit_comes_first_and_slow_tests_can_be_left_out(small):
    long, rest = (
        ["test_b.py::test_split[1]", "test_b.py::test_split[2]"],
        ["test_a.py::test_short", "test_a.py::test_long"],
    )
    assert small("--collect-only") == [*long, *rest]
    assert small("--collect-only", "-m", "not slow") == rest[:1]
    assert "4 passed" in small("-n", "2")[-1]


def test_seed_gives_a_random_order_of_files(small):
    one, other, again = (small("--collect-only", seed=seed) for seed in ("1", "2", "1"))
    assert one == again != other and sorted(one) == sorted(other)


def test_line_per_minute_names_the_running_tests_and_the_rest():
    progress = order.Progress(order.Durations({"a.py::x": 30.0, "a.py::y": 90.0}, [], {}))
    progress.start = 0.0
    progress.pytest_xdist_node_collection_finished(["a.py::x", "a.py::y"])
    progress.pytest_runtest_logfinish("a.py::x")
    progress.running["a.py::y"] = 100.0
    assert progress.line(120.0) == "2 min: 1 of 2 tests done, about 6 min left; running: a.py::y (20 s)"
