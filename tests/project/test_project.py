"""The project around the code: installed packages, the place of files, and forbidden contents."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PINS = [line for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines() if not line.startswith("#")]
AT_THE_TOP = {
    *("benchmarks", "chapters", "course", "d2lps", "docs", "examples", "img", "tests"),
    *("README.md", "README.vi.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"),
    *("pyproject.toml", "requirements.lock", "environment.yml", "Makefile", ".ci", ".github"),
    *(".editorconfig", ".gitattributes", ".gitignore", ".pre-commit-config.yaml"),
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
def test_requirements_of_pyproject_are_locked_at_suitable_versions(text):
    wanted = Requirement(text)
    name = canonicalize_name(wanted.name)
    locked = [pin for pin in map(Requirement, PINS) if canonicalize_name(pin.name) == name]
    assert locked, f"{wanted.name} is not in requirements.lock: make lock"
    for pin in locked:
        (version,) = pin.specifier
        assert wanted.specifier.contains(version.version), f"locked is {pin}, wanted {wanted}: make lock"


def test_packages_for_the_site_are_pinned_outside_the_lock():
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
LETTERS = re.compile(r"\[[^]\s]*[A-Za-z]-[A-Za-z]")
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


def test_shell_commands_have_no_range_of_letters():
    """A Turkish locale has no ``i`` between ``a`` and ``z``."""
    scripts = [path for path in (ROOT / "Makefile", *(ROOT / ".ci").iterdir())]
    found = [line for path in scripts for line in path.read_text("utf-8").splitlines() if LETTERS.search(line)]
    assert not found


# ---- .ci/setup and .venv ----


@pytest.fixture
def set_up(tmp_path):
    """Return a folder with `.ci/setup` alone, and a function that runs it there: it stops before any package."""
    folder = tmp_path / "course"
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    environment = os.environ | {"PYTHON": sys.executable, "PIP_NO_INDEX": "1"}
    command, pipes = ["sh", ".ci/setup"], {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}

    def run(**variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=folder, env=environment | variables, timeout=120, **pipes)

    return folder, run


@pytest.fixture
def small(set_up, tmp_path, monkeypatch):
    """Return the same, but with a project of one package, which is in a folder that only pip's settings name."""
    folder, run = set_up
    for name in ("tiny", "small"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            for file, content in {
                "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
                "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                "RECORD": "",
            }.items():
                wheel.writestr(f"{name}-1.0.dist-info/{file}", content)
    (folder / "requirements.lock").write_text("tiny==1.0\n")
    backend = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    (folder / "pyproject.toml").write_text(f"{backend}[project]\nname = 'small'\nversion = '1.0'\n")
    (folder / "backend.py").write_text(
        "import os, shutil\n\ndef build_editable(folder, settings=None, metadata=None):\n"
        f"    return os.path.basename(shutil.copy({str(tmp_path / 'small-1.0-py3-none-any.whl')!r}, folder))\n"
    )
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    no_uv = [place for place in os.environ["PATH"].split(":") if not Path(place, "uv").exists()]
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path), "PATH": ":".join(no_uv)}
    return folder, lambda **variables: run(**settings, **variables)


def uv_that(folder: Path, code: str) -> None:
    """Put a program in the place of uv, which the set-up then need not fetch."""
    uv = folder / ".tools/uv/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {{\n{code}\n}}\n')
    uv.chmod(0o755)


def installed_by(folder: Path) -> str:
    return next((folder / ".venv").glob("lib/*/site-packages/tiny-1.0.dist-info/INSTALLER")).read_text().strip()


needs_311 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the set-up takes Python 3.11")


@needs_311
def test_pip_installs_where_uv_cannot_be_had(small):
    folder, run = small
    done = run()  # no index, so no uv
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[2:] == ["pip, which is slower, installs the packages: uv cannot be had here."]
    assert installed_by(folder) == "pip" and (folder / ".venv/.ready").read_text() == f"{folder}\n"


@needs_311
def test_pip_installs_what_uv_could_not(small):
    folder, run = small
    uv_that(folder, "[ $2 = check ]")
    done = run()
    assert done.returncode == 0, done.stderr
    assert "uv could not install -r requirements.lock (see above): pip tries." in done.stderr.splitlines()
    assert installed_by(folder) == "pip"


@needs_311
def test_uv_takes_the_indexes_that_the_settings_of_pip_name(small, tmp_path):
    folder, run = small
    uv_that(folder, f"echo \"$@\" >>'{tmp_path}/calls'\nenv >'{tmp_path}/environment'")
    indexes = {
        "PIP_INDEX_URL": "https://a.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://b.example https://c.example",
    }
    done = run(**indexes)
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 2, done.stderr
    variables = set((tmp_path / "environment").read_text().splitlines())
    assert variables >= {
        *("UV_INDEX_URL=https://a.example/simple", "UV_EXTRA_INDEX_URL=https://b.example https://c.example"),
        *(f"UV_FIND_LINKS={tmp_path}", "UV_NO_INDEX=1", "UV_INDEX_STRATEGY=unsafe-best-match"),
    }
    calls = [call.replace(f"-q --python {folder}/.venv/bin/python ", "") for call in (tmp_path / "calls").open()]
    assert calls[:2] == ["pip install -r requirements.lock\n", "pip install --no-build-isolation --no-deps -e .\n"]


@needs_311
def test_pip_installs_where_a_setting_of_pip_is_none_of_uv(small, tmp_path):
    folder, run = small
    uv_that(folder, f"touch '{tmp_path}/called'")
    done = run(PIP_CLIENT_CERT=str(tmp_path / "mine.pem"))
    assert done.returncode == 0, done.stderr
    assert "installs the packages: its settings (pip config list) have one that uv lacks." in done.stderr
    assert installed_by(folder) == "pip" and not (tmp_path / "called").exists()


def linked(venv, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    venv.symlink_to(tmp_path / "elsewhere")


def linked_to_another_clone(venv, tmp_path):
    linked(venv, tmp_path)
    (venv / ".ready").write_text("/another/clone\n")


def made_by_another_program(venv, tmp_path):
    venv.mkdir()


@pytest.mark.parametrize("make_venv", [linked, linked_to_another_clone, made_by_another_program])
def test_an_environment_that_the_set_up_did_not_make_is_left_alone(make_venv, set_up, tmp_path):
    folder, run = set_up
    make_venv(folder / ".venv", tmp_path)
    (folder / ".venv/precious").write_text("work of years")
    done = run()
    assert done.returncode == 1 and "remove .venv or rename it" in done.stderr
    assert (folder / ".venv/precious").read_text() == "work of years"


@needs_311
@pytest.mark.parametrize("mark", [".made", ".ready"])
def test_an_environment_of_the_set_up_that_was_interrupted_or_moved_is_made_again(mark, set_up):
    folder, run = set_up
    (folder / ".venv").mkdir()
    for name in (mark, "remains"):
        (folder / ".venv" / name).write_text("/where/it/was\n")
    run()
    venv = folder / ".venv"
    assert not (venv / "remains").exists() and (venv / ".made").exists() and not (venv / ".ready").exists()
    subprocess.run([venv / "bin/python", "-c", "import pip"], check=True)


# ---- the weekly run ----


@pytest.mark.parametrize(
    ("week", "way"),
    [
        *(("06", "default"), ("07", "avx2"), ("08", "two busy"), ("09", "ORDER=31")),  # 08 is no octal number
        *(("10", "ORDER=31"), ("11", "ORDER=31"), ("53", "ORDER=31")),
    ],
)
def test_all_tests_run_in_another_way_each_week(week, way, tmp_path):
    workflow = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text("utf-8"))
    script = workflow["jobs"]["all"]["steps"][-1]["run"]
    programs = {
        "date": f"[ $1 = +%-V ] && expr {week} + 0",
        "yes": "echo >>busy; exec sleep 600",  # it keeps standard error open until it is killed
        "make": "while [ -e busy ] && [ $(wc -l <busy) -lt 2 ]; do sleep 0.1; done\n"
        'echo "$1" $ATEN_CPU_CAPABILITY "$2" $(! [ -e busy ] || echo two busy)',
    }
    (tmp_path / "bin").mkdir()
    for name, code in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    if way == "two busy":
        (tmp_path / "busy").touch()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "GITHUB_RUN_NUMBER": "31"}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout.split()) == (0, ["test", *way.split()]), done.stderr


# ---- line ends ----


def test_shell_files_makefile_and_python_have_line_feeds_in_every_clone():
    names = [name for name in our_files() if re.search(r"^\.ci/|(^|/)Makefile$|\.(sh|py)$", name)]
    command = ["git", "-c", "safe.directory=*", "check-attr", "-z", "--stdin", "eol"]
    given = subprocess.run(command, cwd=ROOT, input="\0".join(names), capture_output=True, text=True, check=True).stdout
    assert given.split("\0")[2::3] == ["lf"] * len(names)


def test_a_checkout_by_git_for_windows_starts(tmp_path):
    git_files()
    command = ["git", "-c", "safe.directory=*", "-c", "core.autocrlf=true"]
    subprocess.run([*command, "checkout-index", "--all", f"--prefix={tmp_path}/"], cwd=ROOT, check=True)
    texts = {
        path: path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.suffix not in (".woff2", ".gz")
    }
    assert [path for path, written in texts.items() if b"\r\n" in written] == []
    done = subprocess.run(["sh", ".ci/setup", "nonsense"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "\nusage: .ci/setup [book | browser | hosts | uv]\n")
