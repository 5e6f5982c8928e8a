"""Commands of the package: ``python -m d2lps COMMAND …``.

``doctor`` checks this host before it trains with others (``--json`` prints for programs). ``parallelize --model gpt3
--gpus 1024`` chooses how to divide a model over GPUs (``--help`` lists its options).
"""

import sys

from d2lps.messages import allow_any_letter


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names, and return the exit status."""
    allow_any_letter()
    if arguments[:1] == ["doctor"] and set(arguments[1:]) <= {"--json"}:
        from d2lps.cluster.doctor import main as doctor

        return doctor(arguments[1:])
    if arguments[:1] == ["parallelize"]:
        from d2lps.scaling.command import main as parallelize

        return parallelize(arguments[1:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
