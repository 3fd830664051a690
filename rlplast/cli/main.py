"""The command line's entry point: one subcommand per file; exit codes as in `run.messages`."""

import argparse
import importlib
import io
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from rlplast import __version__
from rlplast.cli.output import safe_warnings, visible
from rlplast.core.errors import did_you_mean
from rlplast.run.imports import import_modules
from rlplast.run.messages import exit_code

__all__ = ["main"]

# What each does. Their files import torch, which takes a second, so `--help` imports none.
COMMANDS = {
    "train": "Train a config to its end.",
    "resume": "Go on with a run that was interrupted.",
    "evaluate": "Play full episodes with a trained agent.",
    "study": "Compare arms, and train what they share only once.",
    "work": "Train cells of a study that is planned, beside other workers.",
    "report": "Make one page of many runs: curves, intervals, comparisons, costs, configs.",
    "frame": "Write what runs measured as one table, for pandas, R or a spreadsheet.",
    "show": "Show where a run or a study is, and what comes next.",
    "diagnose": "Say in words whether a run loses plasticity.",
    "compare": "Say what two runs differ in, and whether they are equal bit for bit.",
    "apply": "Apply a method to a saved state dict.",
    "measure": "Measure a saved state dict.",
    "data": "Check published data that you downloaded, and unpack or convert it.",
    "tokens": "Turn text files into a corpus that a GPT trains on.",
    "units": "Show the hidden units of a run's networks: which entries belong to which.",
    "schema": "Print a JSON Schema of configs, by which editors check YAML.",
    "list": "List what a config can name: methods, metrics, optimizers and so on.",
    "bench": "Say whether compiled updates pay for a config on this machine.",
}


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose paragraphs fit the terminal; what is indented, such as examples, stays."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        return "\n\n".join(p if p.startswith(" ") else textwrap.fill(p, width) for p in parts)


class _Parser(argparse.ArgumentParser):
    """A parser whose messages show what was given as it is printed elsewhere."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program."""
        super().exit(status, message and visible(message))

    def error(self, message: str) -> NoReturn:
        """Exit, naming the nearest command if there is no such one."""
        wrong = re.search(r"argument COMMAND: invalid choice: '(.*?)'", message)
        if wrong is not None:
            message = f"there is no command {wrong[1]!r}: {did_you_mean(wrong[1], COMMANDS)}"
        super().error(message)


class _Command(_Parser):
    """A command's parser, which declares its arguments when the command is used."""

    name: str | None = None

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """Parse, as the base class does."""
        if self.name is not None:
            module = importlib.import_module(f"rlplast.cli.{self.name}_command")
            self.name, self.description = None, module.__doc__
            module.add_arguments(self)
            self.set_defaults(run=module.run)
        return super().parse_known_args(*args, **options)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = _Parser(prog="rlplast", description="Plasticity interventions.")
    root.add_argument("--version", action="version", version=f"rlplast {__version__}")
    root.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module first, such as one that registers your own methods",
    )
    commands = root.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Command
    )
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, allow_abbrev=False, formatter_class=_Help)
        command.name = name
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. `argv` has no program's name."""

    def run() -> int:
        root = parser()
        arguments, rest = root.parse_known_args(argv)
        if rest and not getattr(arguments, "takes_overrides", False):
            hint = ": copy the study's file and change it (keys of runs are under overrides)"
            hint *= arguments.command == "study"
            root.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        arguments.overrides = rest
        import_modules(arguments.modules)
        return arguments.run(arguments)

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever letters its encoding has
            stream.reconfigure(errors="replace")
    with safe_warnings():
        return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
