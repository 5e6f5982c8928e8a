"""The project around the code: installed packages, the place of files, and forbidden contents."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PINS = [line for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines() if not line.startswith("#")]
AT_THE_TOP = {
    *("chapters", "course", "d2lps", "docs", "examples", "img", "tests"),
    *("README.md", "README.vi.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"),
    *("pyproject.toml", "requirements.lock", "environment.yml", "Makefile", ".ci", ".github", ".gitignore"),
}


def git_files(*options) -> list[str]:
    """Return the files that git lists, or skip the test outside a clone (an unpacked archive)."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is not a git clone")
    # In a container a clone often belongs to another user; to list its files is harmless.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", *options]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def our_files() -> list[str]:
    """Return the tracked files; before the first commit, all files that git does not ignore."""
    return git_files() or git_files("--others", "--exclude-standard")


def declared() -> list[str]:
    project = PROJECT["project"]
    optional = project["optional-dependencies"] | {"book": []}  # pinned in its own place: see below
    return sum(optional.values(), project["dependencies"] + PROJECT["build-system"]["requires"])


@pytest.mark.parametrize("text", declared())
def test_what_pyproject_asks_for_is_locked_at_a_version_that_will_do(text):
    wanted = Requirement(text)
    name = canonicalize_name(wanted.name)
    locked = [pin for pin in map(Requirement, PINS) if canonicalize_name(pin.name) == name]
    assert locked, f"{wanted.name} is not in requirements.lock: make lock"
    for pin in locked:
        (version,) = pin.specifier
        assert wanted.specifier.contains(version.version), f"locked is {pin}, wanted {wanted}: make lock"


def test_what_only_the_site_needs_is_pinned_and_not_in_the_lock():
    """`make lab` installs the lock, and no learner needs to build the site."""
    for pin in map(Requirement, PROJECT["project"]["optional-dependencies"]["book"]):
        (part,) = pin.specifier
        assert part.operator == "==" and pin.name not in [Requirement(each).name for each in PINS]


def test_every_line_of_the_lock_pins_one_version():
    assert PINS
    for pin in map(Requirement, PINS):
        assert [part.operator for part in pin.specifier] == ["=="], pin


def test_torch_is_pinned_so_that_a_cpu_and_a_cuda_build_both_fit():
    assert [pin for pin in PINS if re.match(r"torch\b", pin)] == ["torch==2.13.0"]


def test_the_lock_brings_no_cuda_of_its_own():
    assert [pin for pin in PINS if re.match(r"nvidia|cuda|triton|torchvision", pin)] == []


def test_conda_installs_what_pip_installs():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    *rest, by_pip = environment["dependencies"]
    assert (environment["name"], rest) == ("d2lps", ["python=3.11", "pip"])
    assert by_pip == {"pip": [*PINS, "-e ."]}, "environment.yml is not of this lock: make lock"


def test_the_top_folder_holds_only_what_belongs_there():
    top = {name.split("/")[0] for name in our_files()}
    assert top >= {"d2lps", "Makefile"}
    assert top <= AT_THE_TOP, f"these belong elsewhere: {sorted(top - AT_THE_TOP)}"


# Written so that the patterns do not match themselves.
PRIVATE = re.compile(
    r"(?<![\w.~}/-])/(?:home|Users|root|work)/\w+|/opt/(?:wheels|pypi)",  # a path that is right on one machine only
    re.IGNORECASE,
)


def test_no_file_speaks_of_the_machine_it_was_made_on():
    found = []
    for name in our_files():
        try:
            text = (ROOT / name).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}: {match.group()}" for match in PRIVATE.finditer(text)]
    assert not found


def make(target: str) -> str:
    """Return the commands that `make target` would run, under a Vietnamese locale."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key != "MFLAGS"}
    locale = {"LANG": "vi_VN.UTF-8", "LANGUAGE": "vi", "LC_ALL": "C"}
    command = ["make", "--dry-run", "--no-print-directory", target]
    return subprocess.run(command, cwd=ROOT, env=kept | locale, capture_output=True, text=True, check=True).stdout


def test_the_language_comes_from_the_target_and_never_from_the_locale():
    assert make("lab").splitlines()[-1].endswith("-m course.book lab")
    for language in ("en", "vi", "zh"):
        assert make(f"lab-{language}").splitlines()[-1].endswith(f"-m course.book lab --language {language}")
    for path in (ROOT / "Makefile", *(ROOT / ".ci").iterdir()):
        assert not re.search(r"\$[({]?(LANG|LANGUAGE|LC_\w+)\b", path.read_text("utf-8")), path.name
