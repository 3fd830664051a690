"""Apply a method to a saved state dict.

The command edits every floating tensor with two or more dimensions, in file order. Choose others
by name with --include and --exclude, also biases and norm layers. A file has only names and shapes,
so embeddings and positions count as weights: exclude them if they should stay. Give initial weights
with --init. Set METHOD's parameters with --PARAM VALUE; `rlplast list interventions` shows them.
"""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.table import Table

from rlplast.cli.output import show_json, warn
from rlplast.cli.state_network import StateNetwork, select
from rlplast.cli.tables import figure, show
from rlplast.cli.train_command import overrides
from rlplast.core import registry
from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Method, has_face
from rlplast.core.method.once import apply
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.scope import SCOPES, scope
from rlplast.run.state_file import check_out, read, write
from rlplast.training.config import parse_yaml

__all__ = ["add_arguments", "run"]

KINDS_OF_INIT = ("fresh", "stored")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments; every method's parameters are options of it."""
    parser.add_argument("method", metavar="METHOD", help="see `rlplast list interventions`")
    parser.add_argument("file", type=Path, metavar="FILE", help="a .safetensors or .pt state dict")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file to write; may be FILE"
    )
    parser.add_argument(
        "--init", metavar="FILE", help="a state dict saved before training, or the word 'fresh'"
    )
    parser.add_argument(
        "--include", action="append", default=[], metavar="GLOB", help="edit only these, biases too"
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="do not edit these"
    )
    parser.add_argument("--key", help="key of a state dict inside a .pt, such as model or a.b")
    parser.add_argument("--scope", default="all", help=f"{' | '.join(SCOPES)} (default all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of random draws (default 0)")
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")
    # Declared, because the value of an undeclared option before FILE would be taken for FILE.
    for name, methods in _parameters().items():
        with suppress(argparse.ArgumentError):  # what the command itself calls so goes first
            parser.add_argument(
                f"--{name}",
                dest="params",
                action="append",
                type=lambda text, name=name: (name, parse_yaml(text, f"--{name}")),
                metavar="V",
                help=f"for {', '.join(methods)}",
            )
    parser.set_defaults(takes_overrides=True)


def _parameters() -> dict[str, list[str]]:
    """Return ``{parameter: methods that have it}``; `init` is an option with its own rule."""
    found: dict[str, list[str]] = {}
    for info in (i for i in registry.rows("interventions") if not _needs(i.target)):
        for name in info.params:
            if name != "init":
                found.setdefault(name, []).append(info.name)
    return found


def _needs(method: Any) -> str:
    """Say what a method does or reads that a file of weights has not; empty if nothing."""
    if has_face(method, "install"):
        return "puts modules into a network"
    if has_face(method, "term"):
        return "adds a term to the loss"
    if has_face(method, "follow"):
        return "follows updates"
    return f"reads {' and '.join(method.reads)}" if method.reads else ""


def _prepare(args: argparse.Namespace) -> tuple[dict[str, Any], Path | None, bool]:
    """Return the method's parameters, the file of initial weights, and whether θ0 is read.

    Raises:
        ConfigError: for a method that needs more than weights, a parameter or scope that does
            not exist or is out of range, or if θ0 is needed and not given.
    """
    kind: Any = registry.get("methods", args.method).target
    if needs := _needs(kind):
        raise ConfigError(
            f"{args.method} {needs}, which a file of weights has not: list it under "
            f"`{kind.key}:` of a run"
        )
    params = {**overrides(args.overrides), **dict(args.params or [])}
    has_kind = "init" in registry.get("interventions", args.method).params
    initial: Path | None = None
    if args.init in KINDS_OF_INIT and has_kind:
        params["init"] = args.init
    elif args.init is not None:
        initial = Path(args.init)
        params |= {"init": "stored"} if has_kind else {}
    method: Method = registry.build("interventions", args.method, params)
    restores = scope(args.scope, "--scope").restore is not SCOPES["all"].restore
    needed = method.uses_initial or restores
    if needed and initial is None:
        fresh = ", or --init fresh for new draws" if has_kind and not restores else ""
        raise ConfigError(
            f"{args.method} returns to initial weights: give them with --init FILE, a state dict "
            f"saved before training{fresh}"
        )
    return params, initial, needed


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    params, initial, needed = _prepare(args)
    check_out(args.out)
    saved = read(args.file, args.key)
    given = None if initial is None else read(initial, args.key, key_if_nested=True).tensors
    selected = select(saved.tensors, args.include, args.exclude)
    state = StateNetwork(saved.tensors, selected, given if needed else None)
    receipt = apply(
        args.method,
        state.network,
        scope=args.scope,
        optimizer_policy="keep",
        follower_policy="leave",
        seed=args.seed,
        **params,
    )
    state.store()
    write(saved, args.out)
    if args.out.suffix == ".safetensors" and saved.left_out:
        warn(f"rlplast: {args.out} holds tensors only, without {saved.left_out}")
    _report(receipt, args)
    return 0


def _report(receipt: Receipt, args: argparse.Namespace) -> None:
    row = receipt.row()
    if args.json:
        show_json(row)
        return
    table = Table("receipt", "value")
    table.add_row("method", row["method"])
    table.add_row("file", str(args.file))
    table.add_row("out", str(args.out))
    table.add_row("entries_touched", f"{row['entries_touched']:,}")
    for key in (
        "sfe",
        "sfe_normalized",
        "dfi_before",
        "dfi_after",
        "norm_before",
        "norm_after",
        "time/seconds",
    ):
        table.add_row(key, figure(row[key]))
    show(table)
