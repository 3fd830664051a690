"""The command line's entry point: one subcommand per file; exit codes as in `errors`."""

import argparse
import sys
from collections.abc import Sequence

from rlplast import __version__
from rlplast.cli import (
    apply_command,
    evaluate_command,
    list_command,
    measure_command,
    report_command,
    resume_command,
    study_command,
    tokens_command,
    train_command,
)
from rlplast.cli.errors import exit_code, import_module

__all__ = ["main"]

COMMANDS = {
    "train": train_command,
    "resume": resume_command,
    "evaluate": evaluate_command,
    "study": study_command,
    "report": report_command,
    "apply": apply_command,
    "measure": measure_command,
    "tokens": tokens_command,
    "list": list_command,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = argparse.ArgumentParser(prog="rlplast", description="Plasticity interventions.")
    root.add_argument("--version", action="version", version=f"rlplast {__version__}")
    root.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module first, such as one that registers your own methods",
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; default: the process's own.

    Returns:
        The exit code.
    """
    root = parser()
    arguments, rest = root.parse_known_args(argv)
    if rest and not getattr(arguments, "takes_overrides", False):
        root.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.overrides = rest

    def run() -> int:
        for module in arguments.modules:
            import_module(module)
        return arguments.run(arguments)

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
