"""Print a JSON Schema of configs, by which editors complete and check YAML.

    rlplast schema --out schema.json

Name it in the first lines of a config: ``# yaml-language-server: $schema=schema.json``.
"""

import argparse
from pathlib import Path

from rlplast.cli.output import say
from rlplast.core.errors import ConfigError
from rlplast.study.schema import schema_text
from rlplast.training.files import whole

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", type=Path, help="instead of printing it")


def run(args: argparse.Namespace) -> int:
    """Print or write the schema."""
    text = schema_text()
    if args.out is None:
        say(text, end="")
    elif not args.out.parent.is_dir():
        raise ConfigError(f"--out {args.out}: {args.out.parent} is no folder: make it first")
    else:
        with whole(args.out) as file:
            file.write_text(text)
    return 0
