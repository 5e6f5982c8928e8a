"""The core and the parts of notebooks that need no torch, in Python 3.14: Pyodide's, run by the node of Playwright."""

import re
import subprocess
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from course.site import pyodide

ROOT = Path(__file__).parents[2]
PACKAGES = ("networkx", "pytest", "pluggy", "iniconfig", "packaging", "pygments")  # all are plain Python
TESTS = """
plan/test_plan.py topology/test_topology.py topology/test_hosts.py topology/test_nvidia.py schedule/test_tables.py
schedule/test_timeline.py simulate/test_cost.py simulate/test_trace.py scaling/test_job.py scaling/test_scaling.py
view/test_lanes.py course/site/test_site_in_browser.py project/test_units.py
""".split()


def pack(archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for folder in ("d2lps", "course", "chapters", "tests", "img"):
            for path in (ROOT / folder).rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".ipynb":
                    file.write(path, path.relative_to(ROOT))
        for name in PACKAGES:
            for part in distribution(name).files:
                if part.suffix == ".py" or part.name == "METADATA":
                    file.writestr(f"packages/{part.as_posix()}", part.read_binary())


def test_the_core_runs_in_python_314(tmp_path):
    if not pyodide.is_there(ROOT):
        pytest.skip("Pyodide is not here: python -m course.site.pyodide")
    from playwright._impl._driver import compute_driver_executable

    node, _ = compute_driver_executable()
    pack(tmp_path / "course.zip")
    command = [node, ROOT / "tests/helpers/pyodide.mjs", pyodide.folder(ROOT), tmp_path / "course.zip"]
    command += ["tests/helpers/in_pyodide.py", *(f"tests/{name}" for name in TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.stdout.startswith("3.14."), done.stderr[-2000:]
    passed = int((re.search(r"(\d+) passed", done.stdout) or [0, 0])[1])
    assert done.returncode == 0 and passed > 200, done.stdout[-4000:]
