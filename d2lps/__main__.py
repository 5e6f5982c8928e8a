"""``python -m d2lps doctor``: check this host before it trains with others (``--json`` prints for programs)."""

import sys


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names, and return the exit status."""
    if arguments[:1] == ["doctor"] and set(arguments[1:]) <= {"--json"}:
        from d2lps.cluster.doctor import main as doctor

        return doctor(arguments[1:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
