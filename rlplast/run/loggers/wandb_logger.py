"""Weights & Biases: one run there for each run here, whose id it has."""

import os
from collections.abc import Mapping
from typing import Any

from rlplast.run.loggers.logger import About

__all__ = ["LIBRARY", "REMEDY", "WeightsAndBiases", "start"]

LIBRARY = ("wandb.sdk", "wandb")  # a folder wandb may lie about: it has no such module

PROJECT = "rlplast"  # unless WANDB_PROJECT is set
REMEDY = "`wandb login`, or set WANDB_MODE=offline"
_LONGEST = 64  # characters of a tag, a group, a job type
_EXIT = {"done": 0, "interrupted": 130}


class WeightsAndBiases:
    """Logs lines and receipts as they come, drawn over the clock: its own step never goes back."""

    def __init__(self, about: About) -> None:
        import wandb

        # Left by the first lines: an empty file, since offline there is nobody to ask.
        self._begun = about.folder / "wandb" / "begun"
        self.resumed = self._begun.exists()
        study = about.study
        tags = [
            f"{key}:{study[key]}"
            for key in ("arm", "task", "seed")
            if study.get(key) not in (None, "")
        ]
        self._run: Any = wandb.init(
            dir=str(about.folder),
            id=about.id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=about.name,
            group=str(study["study"])[:_LONGEST] if study else None,
            job_type=str(study["arm"])[:_LONGEST] if study else None,
            tags=[tag[:_LONGEST] for tag in tags],
            settings=wandb.Settings(console="off", save_code=False),
        )
        config = dict(about.config) | ({"study": dict(study)} if study else {})
        self._run.config.update(config, allow_val_change=True)  # a resumed run may be longer
        self._run.define_metric(about.axis)
        self._run.define_metric("*", step_metric=about.axis)

    def log(self, clock: Mapping[str, int], values: Mapping[str, float]) -> None:
        """Log one line."""
        self._run.log({**clock, **values})

    def flush(self) -> None:
        """Note that lines were given; a process of its own sends them."""
        self._begun.touch()

    def close(self, status: str) -> None:
        """Send the rest; what is not done counts as failed there, and the summary says which."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=_EXIT.get(status, 1))


start = WeightsAndBiases
