"""Resume: continue a run from its newest complete checkpoint."""

import argparse
from pathlib import Path

from rlplast.cli.finish import finish
from rlplast.cli.output import warn
from rlplast.cli.progress import progress
from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.study.folder import is_prefix, study_of
from rlplast.training.distributed import rank

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run's folder")
    parser.add_argument("--total", help="a new, longer total, such as '400k env_steps'")
    parser.add_argument("--device", help="another device to go on on, such as cpu")


def run(args: argparse.Namespace) -> int:
    study = study_of(Path(args.folder))
    if study is not None and is_prefix(study, Path(args.folder)):
        raise ConfigError(
            f"{args.folder} is a prefix of the study {study}, which ends where its arms part: "
            f"`rlplast study CONFIG --out {study}` goes on with it"
        )
    if study is not None and args.total is not None:
        raise ConfigError(
            f"--total {args.total}: {args.folder} belongs to the study {study}, whose report would "
            "compare it with shorter runs: copy the folder to another place first, or raise total "
            "in the study's config"
        )
    messages: list[str] = []

    def report(text: str) -> None:
        messages.append(text)
        if rank() == 0:
            warn(text)

    with progress() as observer:
        finished = api.resume(
            args.folder, args.total, observer=observer, report=report, device=args.device
        )
    if rank() == 0 and not any("nothing to resume" in text for text in messages):
        finish(finished)
    return 0
