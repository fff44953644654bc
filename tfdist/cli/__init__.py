"""The command line: `tfdist SUBCOMMAND ...`.

Nothing here imports TensorFlow, numpy or rich: `--help` answers at once. Each subcommand is a
module with NAME, HELP, `configure(parser)` and `execute(arguments) -> exit code`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import tfdist
from tfdist.cli import doctor, manifest, plan, run
from tfdist.errors import TfdistError

__all__ = ["main"]

_COMMANDS = (run, manifest, plan, doctor)
_USAGE_ERROR = 2


class _Parser(argparse.ArgumentParser):
    """Reports a wrong option on one line, as every other error of the user's."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_ERROR, f"{self.prog}: {message}. See {self.prog} --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: the words after `tfdist`; None takes them from this process.

    Returns:
        The exit code: 2 for a mistake of the user's, which is told on one line of stderr.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return _USAGE_ERROR
    try:
        return int(arguments.execute(arguments))
    except TfdistError as error:
        print(f"tfdist {arguments.command}: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tfdist", description="Distributed training for Keras 3.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"tfdist {tfdist.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", title="subcommands")
    for command in _COMMANDS:
        subparser = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.configure(subparser)
        subparser.set_defaults(execute=command.execute)
    return parser
