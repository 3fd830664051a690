"""Apply a method to a saved state dict.

FILE is a .safetensors, or a .pt that is a flat dict of names and tensors. The command edits every
floating tensor with two or more dimensions, in file order. Choose others by name with --include and
--exclude, also biases and norm layers. A file has only names and shapes, so embeddings and
positions count as weights: exclude them if they should stay. What is tied in a .pt is one tensor;
`fire` and `dash` leave it as it is. Give initial weights with --init. Set METHOD's parameters with
--PARAM VALUE; `rlplast list interventions` shows them.

Where a bias belongs to the second dimension of a matrix, that is taken for (d_in, d_out), as in a
GPT-2 of transformers. Parts of parametrised weights and quantised weights are refused by name; so
are, by methods that need a matrix, the gates of recurrent layers and transposed convs.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.table import Table

from rlplast.cli.output import show_json
from rlplast.cli.tables import figure, show
from rlplast.cli.train_command import overrides
from rlplast.core import registry
from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Method, implements
from rlplast.core.method.once import apply
from rlplast.core.method.scope import SCOPES, scope
from rlplast.run.state_file import SUFFIXES, network_of, read, write
from rlplast.training.config import parse_yaml

__all__ = ["add_arguments", "run"]

FIGURES = ("sfe", "sfe_normalized", "dfi_before", "dfi_after", "norm_before", "norm_after")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments, among them every method's parameters."""
    add = parser.add_argument
    add("method", metavar="METHOD", help="see `rlplast list interventions`")
    add("file", type=Path, metavar="FILE", help="a .safetensors, or a flat .pt")
    add("--out", type=Path, required=True, metavar="FILE", help="file to write; may be FILE")
    add("--init", metavar="FILE", help="weights saved before training, or the word 'fresh'")
    globs: Any = {"action": "append", "default": [], "metavar": "GLOB"}
    add("--include", help="edit only these, biases too", **globs)
    add("--exclude", help="do not edit these", **globs)
    add("--scope", default="all", help=f"{' | '.join(SCOPES)} (default all)")
    add("--seed", type=int, default=0, help="seed of random draws (default 0)")
    add("--json", action="store_true", help="print the receipt as JSON")
    # Declared, because the value of an undeclared option before FILE would be taken for FILE.
    own = {action.dest for action in parser._actions}
    for name in {n for info in registry.rows("interventions") for n in info.params} - own:
        add(f"--{name}", dest=f"param {name}", help=argparse.SUPPRESS)
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    kind: Any = registry.get("methods", args.method).target
    needs = [f"reads {what}" for what in kind.reads]
    if any(implements(kind, name) for name in ("install", "term", "follow")):
        needs.append("needs a network that trains")
    if needs:
        raise ConfigError(
            f"{args.method} {' and '.join(needs)}, which a file of weights has not: list it under "
            f"`{kind.key}:` of a run"
        )
    given = {k.split()[1]: v for k, v in vars(args).items() if k.startswith("param ") and v}
    params = overrides(args.overrides) | {k: parse_yaml(v, f"--{k}") for k, v in given.items()}
    draws = "init" in registry.get("interventions", args.method).params
    initial = None if args.init is None or (draws and args.init == "fresh") else Path(args.init)
    if draws and args.init is not None:
        params["init"] = "fresh" if initial is None else "stored"
    method: Method = registry.build("interventions", args.method, params)
    restores = scope(args.scope, "--scope").restore is not SCOPES["all"].restore
    if initial is None and (method.uses_initial or restores):
        fresh = ", or --init fresh for new draws" if draws and not restores else ""
        raise ConfigError(
            f"{args.method} returns to initial weights: give them with --init FILE, a state dict "
            f"saved before training{fresh}"
        )
    out = args.out
    if out.suffix not in SUFFIXES or out.is_dir() or not out.resolve().parent.is_dir():
        raise ConfigError(f"--out {out}: allowed is a .safetensors or .pt in a folder that exists")
    tensors, before = read(args.file), None if initial is None else read(initial)
    network = network_of(tensors, args.include, args.exclude, before)
    params |= {"optimizer_policy": "keep", "follower_policy": "leave"}
    row = apply(args.method, network, scope=args.scope, seed=args.seed, **params).row()
    write(tensors, args.file, out)
    if args.json:
        show_json(row)
        return 0
    cells = {"method": args.method, "file": args.file, "out": out}
    cells |= {"entries_touched": f"{row['entries_touched']:,}"}
    table = Table("receipt", "value")
    for key, value in (cells | {key: figure(row[key]) for key in FIGURES}).items():
        table.add_row(key, str(value))
    show(table)
    return 0
