"""Turn text files into a corpus: a folder of tokens that a GPT trains on.

Each file is one document. A folder stands for all *.txt files in it and below, sorted by name. The
last tenth of the text is kept for validation. With --validation give another share, or a file or
folder with validation text that is not part of TEXT. See docs/how-to/prepare-tokens.md.
"""

import argparse
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn

from rlplast.cli.live import counted_shown
from rlplast.cli.output import say
from rlplast.cli.signals import stoppable
from rlplast.core.errors import ConfigError
from rlplast.gpt.tokens import TOKENIZERS, write_corpus

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text", nargs="+", type=Path, metavar="TEXT", help="UTF-8 files, and folders of *.txt"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a new or empty folder"
    )
    parser.add_argument(
        "--tokenizer", default="bytes", help=f"{' | '.join(TOKENIZERS)} (default bytes)"
    )
    parser.add_argument(
        "--validation",
        default="0.1",
        metavar="SHARE|PATH",
        help="share of the text, from its end; or a path to validation text (default 0.1)",
    )


def _validation(text: str) -> float | Path:
    """Return a share, or a path to text."""
    try:
        return float(text)
    except ValueError:
        if Path(text).exists():
            return Path(text)
        raise ConfigError(
            f"--validation {text}: allowed is a share in (0, 1), or a file or folder that exists"
        ) from None


def run(args: argparse.Namespace) -> int:
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with stoppable(), counted_shown(*columns) as advance:  # nothing half-written is left
        about = write_corpus(
            args.text, args.out, args.tokenizer, _validation(args.validation), advance
        )
    say(
        f"{args.out}: {about['train_tokens']:,} tokens to train on, "
        f"{about['validation_tokens']:,} to validate on (tokenizer {about['tokenizer']})"
    )
    return 0
