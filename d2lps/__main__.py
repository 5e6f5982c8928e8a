"""Commands of the package: ``python -m d2lps COMMAND …``. Each has a line in ``COMMANDS`` and its own ``--help``."""

import argparse
import sys
from importlib import import_module

from d2lps.messages import allow_any_letter

COMMANDS = {  # name → its module, and what it does
    "busbw": ("d2lps.cluster.busbw", "bus bandwidths of all-reduce: predicted, measured by nccl-tests, chosen by NCCL"),
    "doctor": ("d2lps.cluster.doctor", "check this host before it trains with others"),
    "hang": ("d2lps.cluster.hang", "find the rank and the collective that differ in flight-recorder dumps"),
    "parallelize": ("d2lps.scaling.command", "choose how to divide a model over GPUs"),
    "step": (
        "d2lps.cluster.step",
        "divide the steps of torch.profiler's traces into parts, and say who waits for whom",
    ),
}


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names, and return the exit status."""
    allow_any_letter()
    known = "".join(f"  {name:<12} {does}\n" for name, (_, does) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m d2lps",
        usage="python -m d2lps COMMAND …",
        epilog=f"commands (--help after one lists its options):\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    command = parser.parse_args(arguments[:1] or ["--help"]).command
    return import_module(COMMANDS[command][0]).main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
