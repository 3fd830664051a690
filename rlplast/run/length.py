"""How long a run is, in every unit, from its config alone.

- `length`: counts at the end of a run.
- `phases_of`: training and test images of each phase of a classifier's stream.
"""

from typing import Any

import torch

from rlplast.core.training.config import RunConfig
from rlplast.supervised.config import SupervisedConfig
from rlplast.supervised.place import updates_before
from rlplast.supervised.sizes import sizes_of
from rlplast.supervised.streams import Phase, phases

__all__ = ["length", "phases_of"]


def length(config: RunConfig) -> dict[str, float]:
    """Return the counts at the end of a run, by unit; a unit that is not known is left out.

    Of a classifier all phases count, whatever its total is; sets of images whose size is not
    known are taken for what `rlplast.supervised.sizes` says.
    """
    end = config.horizon()
    found = {unit: float(end[unit]) for unit in config.units if end[unit] > 0}
    if isinstance(config, SupervisedConfig):
        stream = phases_of(config)
        found["epochs"] = sum(p.epochs for p in stream)
        found["updates"] = updates_before(stream, config.batch_size, len(stream))
    return found


def phases_of(config: SupervisedConfig) -> list[Phase]:
    """Return the phases of a classifier's stream, as many images as its set is known to have."""
    data: Any = config.data
    sizes, _ = sizes_of(data)
    train, test = (torch.arange(count) % sizes.classes for count in (sizes.train, sizes.test))
    return phases(config.stream, train, test, sizes.classes, config.seed)
