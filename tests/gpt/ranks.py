"""What every process of a `torchrun` does in test_distributed.py; not a test itself."""

import hashlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from rlplast.core.errors import Interrupted, RlplastError
from rlplast.gpt.config import GPTConfig
from rlplast.training import distributed
from rlplast.training.loop import Loop
from tests.gpt.runs import HOOKS, MODEL, run, tiny
from tests.runs import at_step

CONDITIONAL: list[dict[str, Any]] = [
    {"method": "shrink_perturb", "when": {"metric": "weight_norm", "above": 0, "cooldown": "30%"}},
    {"method": "fire", "when": {"metric": "eval/low/loss", "above": 0}, "scope": "gpt"},
    {"method": "full_reset", "when": {"metric": "train/loss", "above": 0}, "from": "80%"},
]


def config_of(corpora: dict[str, str], **changes: Any) -> GPTConfig:
    penalties = [{"method": "c_chain", "params": {"coef": 0.1, "beta": 0.1, "batch": 4}}]
    return tiny(corpora, log={"every": "1 updates"}, penalties=penalties, **changes)


def conditional(corpora: dict[str, str]) -> GPTConfig:
    return tiny(corpora, hooks=CONDITIONAL)


def digest(loop: Loop) -> str:
    module = loop.trainable.networks["gpt"].module
    data = b"".join(value.numpy().tobytes() for value in module.state_dict().values())
    return hashlib.sha256(data).hexdigest()


def interrupted(config: GPTConfig, path: Path) -> str:
    """Run, stop at a signal that only the last process gets, and resume."""

    def stop() -> None:
        if distributed.rank() == distributed.world() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        run(config, path, at_step(13, stop))
    except Interrupted as error:
        run(config, path)
        return str(error)
    return "was not interrupted"


def out_of_step(config: GPTConfig, path: Path) -> str:
    """Change one weight in one process, just before a hook fires."""

    def change(loop: Loop) -> None:
        if loop.trainable.clock.updates == 9 and distributed.rank() == 1:
            with torch.no_grad():
                loop.trainable.networks["gpt"].module.wte.weight[3, 2] += 1e-7  # type: ignore

    try:
        run(config, path, change)
    except RlplastError as error:
        return str(error)
    return "nothing was found"


def main(root: Path) -> None:
    warnings.simplefilter("error")
    corpora = json.loads((root / "corpora.json").read_text())
    results: dict[str, Any] = {"digests": []}
    plain = config_of(corpora)
    all_of_it = {"model": MODEL | {"dropout": 0.2}, "micro_batch": 2, "hooks": HOOKS + CONDITIONAL}
    dropout = config_of(corpora, **all_of_it)
    trained = run(plain, root / "plain", lambda loop: results["digests"].append(digest(loop)))
    results["scores"] = trained.evaluate(0, 0)
    run(dropout, root / "dropout")
    results["dropout"] = torch.get_rng_state().sum().item()
    results["interrupted"] = interrupted(dropout, root / "interrupted")
    rarely = config_of(corpora, checkpoint={"every": "20 updates"})
    results["out_of_step"] = out_of_step(rarely, root / "out_of_step")
    run(conditional(corpora), root / "conditional")
    (root / f"rank{distributed.rank()}.json").write_text(json.dumps(results))
    distributed.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
