"""What every process of a `torchrun` does in test_when_distributed.py; not a test itself."""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from rlplast.core.errors import Interrupted
from rlplast.core.training import distributed
from rlplast.gpt.config import GPTConfig
from tests.gpt.runs import run, tiny
from tests.runs import at_step

__all__ = ["config_of"]

HOOKS: list[dict[str, Any]] = [
    {"method": "shrink_perturb", "when": {"metric": "weight_norm", "above": 0, "cooldown": "30%"}},
    {"method": "fire", "when": {"metric": "eval/low/loss", "above": 0}, "scope": "gpt"},
    {"method": "full_reset", "when": {"metric": "train/loss", "above": 0}, "from": "80%"},
]


def config_of(corpora: dict[str, str], **changes: Any) -> GPTConfig:
    return tiny(corpora, **({"hooks": HOOKS} | changes))


def interrupted(config: GPTConfig, path: Path) -> None:
    """Run, stop at a signal that only the last process gets, and resume."""

    def stop() -> None:
        if distributed.rank() == distributed.world() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        run(config, path, at_step(13, stop))
    except Interrupted:
        run(config, path)


def main(root: Path) -> None:
    warnings.simplefilter("error")
    corpora = json.loads((root / "corpora.json").read_text())
    run(config_of(corpora), root / "two")
    interrupted(config_of(corpora), root / "interrupted")
    distributed.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
