"""Check published data that you downloaded, and unpack or convert it for training.

Without NAME the command lists the known sets. With NAME alone it says where the set comes from, and
what its files are. With --root it checks a folder. It unpacks complete archives beside themselves,
turns text into tokens, and reads everything as training does. It exits with 0 if a run can use the
data, and with 2 if not. It downloads nothing; only --download fetches texts.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from rich.table import Table

from rlplast.cli.live import counted_shown
from rlplast.cli.output import say
from rlplast.cli.signals import stoppable
from rlplast.cli.tables import show
from rlplast.core.downloads import Finding, Published
from rlplast.core.errors import ConfigError, check_choice
from rlplast.gpt.downloads import TEXT_SETS, check_text
from rlplast.gpt.tokens import TOKENIZERS
from rlplast.supervised.downloads import IMAGE_SETS, check_images, config_keys

__all__ = ["add_arguments", "run"]

SETS: dict[str, Published] = {**IMAGE_SETS, **TEXT_SETS}
BUILT_IN = ("digits", "random", "bit_flipping", "curve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help=" | ".join(SETS))
    parser.add_argument("--root", type=Path, metavar="DIR", help="folder of what you downloaded")
    parser.add_argument(
        "--download",
        action="store_true",
        help=f"fetch a text ({', '.join(TEXT_SETS)}) from the Hugging Face hub with `datasets`",
    )
    parser.add_argument(
        "--tokenizer",
        default="gpt2",
        help=f"tokenizer for texts: {' | '.join(TOKENIZERS)} (default gpt2)",
    )


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        if args.root is not None or args.download:
            raise ConfigError(f"NAME is not set: allowed with --root are {', '.join(SETS)}")
        table = Table("name", "what", "for", "licence", "from")
        for name, own in SETS.items():
            table.add_row(name, own.title, own.purpose, own.licence, own.page)
        show(table)
        return 0
    if args.name in BUILT_IN:
        say(f"{args.name} needs no file: it comes with rlplast; use data.name: {args.name}")
        return 0
    check_choice("NAME", args.name, SETS)
    check_choice("--tokenizer", args.tokenizer, TOKENIZERS)
    if args.download and args.name not in TEXT_SETS:
        raise ConfigError(
            f"--download: {args.name} is not fetched by rlplast; allowed for "
            f"{', '.join(TEXT_SETS)}: `rlplast data {args.name} --root DIR` prints the commands"
        )
    known = SETS[args.name]
    say(f"{known.title}\nfrom     {known.page}\nlicence  {known.licence}")
    for download in known.downloads:
        say(f"file     {download.url}\n         {download.size:,} bytes, md5 {download.md5}")
    if args.root is None:
        if args.download:
            raise ConfigError("--root is not set: give the folder for the tokens")
        return 0
    try:
        _check(args)
    except PermissionError as error:
        raise ConfigError(
            f"--root = '{args.root}': {error.filename} may not be read or written; remedy: fix "
            f"permissions, such as with `chmod -R u+rwX {args.root}`"
        ) from error
    return 0


def _check(args: argparse.Namespace) -> None:
    """Print what a folder has."""
    name, root = args.name, args.root.expanduser()
    if args.download:
        root.mkdir(parents=True, exist_ok=True)
    if root.exists() and not root.is_dir():  # one that is not there yet is an empty one
        raise ConfigError(f"--root = '{root}' is a file: allowed is the folder with {name}")
    problems: list[Finding] = []
    with stoppable(), _counter(name) as advance:  # nothing half-written is left
        if name in IMAGE_SETS:
            findings, keys = check_images(name, root), lambda: config_keys(name, root)
        else:
            findings = check_text(name, root, args.tokenizer, args.download, advance)
            keys = lambda: f"corpora: {{{name}: {root}}}"  # noqa: E731
        for finding in findings:
            say(f"{finding.what}: {finding.state}")
            if finding.remedy:
                say(f"  remedy: {finding.remedy}")
                problems.append(finding)
    if problems:
        more = f" (and {len(problems) - 1} more, above)" if len(problems) > 1 else ""
        raise ConfigError(
            f"--root = '{root}': {name} cannot be used yet: {problems[0].what} "
            f"{problems[0].state}{more}; remedy: {problems[0].remedy}"
        )
    say(f"{name} is ready: {keys()}")


def _counter(name: str) -> AbstractContextManager[Callable[..., None]]:
    """Show how many rows of a text have been read."""
    columns = ("rows", MofNCompleteColumn(), TimeElapsedColumn())
    return counted_shown(*columns) if name in TEXT_SETS else nullcontext(lambda rows: None)
