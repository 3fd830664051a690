"""Train: run a config to its end.

CONFIG is a file, or a shipped name such as dqn/asterix (`rlplast list configs` shows them).
Set any of its keys with --dotted.key VALUE, such as --optimizer.lr 1e-4. Values are YAML.
For hooks, penalties and layers give a list, a YAML file with the list, or a shipped list:

  rlplast train dqn/demo --hooks '[{method: fire, at: 50%}]'
  rlplast train sac/pendulum --hooks sac/hooks/fire
  rlplast train dqn/demo --layers '[{method: lifecycle, networks: [q]}]'

Common keys (`rlplast train CONFIG --print_config` shows all keys with their values):

  --seed 2                      seed of all random streams
  --total '200k env_steps'      length; of a classifier in updates or epochs
  --threads 2, --device cuda    where it runs
  --env.id minatar/asterix      and --env.num_envs, --env.workers
  --replay_ratio 4              updates per env_step
  --optimizer.lr 1e-4           and --optimizer.name, --optimizer.weight_decay
  --evaluate.every 5%           and --log.every, --checkpoint.every
"""

import argparse
from collections.abc import Sequence
from typing import Any

from rlplast.cli.finish import finish
from rlplast.cli.output import say
from rlplast.cli.progress import progress
from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.training.config import parse_yaml
from rlplast.training.distributed import rank

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="file or shipped name")
    parser.add_argument("--out", help="the run's folder; default: a new one below runs/")
    parser.add_argument("--print_config", action="store_true", help="print the config and exit")
    parser.set_defaults(takes_overrides=True)


def overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Return ``--dotted.key VALUE`` and ``--dotted.key=VALUE`` pairs, values read as YAML."""
    found: dict[str, Any] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"unexpected argument {word!r}: keys are set with --dotted.key VALUE")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words:
                raise ConfigError(f"{word} has no value")
            value = words.pop(0)
        found[key] = parse_yaml(value, word)
    return found


def run(args: argparse.Namespace) -> int:
    config = api.read_config(args.config, overrides(args.overrides))
    if args.print_config:
        say(api.dump_config(config), end="")
        return 0
    with progress() as observer:
        finished = api.train(config, args.out, observer=observer, report=say)
    if rank() == 0:
        finish(finished)
    return 0
