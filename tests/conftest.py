"""What every test begins with: English sentences, and random examples that are the same on every machine."""

import pytest
from hypothesis import settings

from d2lps.messages import speak

settings.register_profile("d2lps", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)  # pytest --hypothesis-profile=explore
settings.load_profile("d2lps")


@pytest.fixture(autouse=True)
def english():
    speak("en")
    yield
    speak("en")
