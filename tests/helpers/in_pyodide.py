"""Run tests in Python for WebAssembly, which is newer than the others and has neither torch nor processes.

``given`` has the files of tests. Tests with examples by hypothesis, which is compiled, are left out.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

sys.path[:0] = ["/course/packages", "/course", "/course/tests"]
os.chdir("/course")
import pytest  # noqa: E402


class Anything:
    """Stands for every strategy."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    __or__ = __ror__ = __call__


def nothing(*_, **__):
    return lambda function: function


def left_out(*_, **__):
    def decorate(function):
        def test():
            pytest.skip("hypothesis is compiled")

        test.__name__ = function.__name__
        return test

    return decorate


hypothesis = sys.modules["hypothesis"] = ModuleType("hypothesis")
hypothesis.given, hypothesis.settings, hypothesis.example = left_out, nothing, nothing
hypothesis.settings.register_profile = hypothesis.settings.load_profile = nothing
hypothesis.HealthCheck = hypothesis.assume = hypothesis.note = Anything()
hypothesis.strategies = sys.modules["hypothesis.strategies"] = ModuleType("hypothesis.strategies")
hypothesis.strategies.__getattr__ = lambda name: Anything()


class Quick:
    """Run the quick tests, in English: the record of durations names the slow ones."""

    def pytest_collection_modifyitems(self, items):
        slow = json.loads(Path("tests/durations.json").read_text("utf-8"))["slow"]
        items[:] = [
            each
            for each in items
            if f"{each.path.relative_to('/course')}::{each.nodeid.partition('::')[2]}" not in slow
        ]

    @pytest.fixture(autouse=True)
    def english(self):
        from d2lps.messages import speak

        speak("en")
        yield
        speak("en")


# Tests that need torch, and two that nest lists too deep for the stack of WebAssembly.
LEFT_OUT = "not torch and not what_is_not_even_json and not what_is_not_a_trace"
OPTIONS = f"--noconftest|-c|/dev/null|-p|no:cacheprovider|-p|no:faulthandler|-k|{LEFT_OUT}"
warnings = ["-W", "error::DeprecationWarning:d2lps", "-W", "ignore::pytest.PytestUnknownMarkWarning"]
print(sys.version)
int(pytest.main(["-q", "-rf", *OPTIONS.split("|"), *warnings, *given], plugins=[Quick()]))  # noqa: F821
