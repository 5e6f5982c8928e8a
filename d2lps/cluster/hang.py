"""``python -m d2lps hang``: the rank and the collective that differ, from dumps of PyTorch's flight recorder."""

import argparse
import sys
from pathlib import Path

from d2lps.messages import LANGUAGES, speak, text
from d2lps.profile import DumpError, compare, read_dumps


def main(arguments: list[str]) -> int:
    """Print where the ranks begin to differ; 0 if they do not, 1 if they do or a file is no dump."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lps hang", description="The rank and the collective that differ in flight-recorder dumps."
    )
    known = "dump of a rank (pickle or JSON), whose name ends with the rank, or a folder of them"
    parser.add_argument("places", nargs="+", type=Path, metavar="DUMP", help=known)
    parser.add_argument("--language", choices=LANGUAGES, default="en")
    options = parser.parse_args(arguments)
    speak(options.language)
    try:
        dumps = read_dumps(options.places)
    except DumpError as error:
        print(error, file=sys.stderr)
        return 1
    numbers = {(group, number) for dump in dumps for group, log in dump.groups.items() for number in log}
    count = {"count": len(numbers), "groups": len({group for group, _ in numbers})}
    differences = compare(dumps)
    if not differences:
        print(text("profile.alike", **count))
        return 0
    print(text("profile.files", ranks=len(dumps), **count), *differences, sep="\n")
    return 1
