"""What each phase makes of the data; draws depend on the run's seed and the task's number alone."""

import math
from dataclasses import replace

import torch

from rlplast.core.rng import torch_stream
from rlplast.supervised.data import Dataset
from rlplast.supervised.formats import Images
from rlplast.supervised.regression import bit_flipping
from rlplast.supervised.streams import Phase, StreamConfig

__all__ = ["task_data"]


def task_data(config: StreamConfig, data: Dataset, phase: Phase, number: int, seed: int) -> Dataset:
    """Return the data as a phase shows them, to which its indices refer."""
    device = data.train.y.device
    if config.name == "random_labels":
        stream = torch_stream(seed, "data", "labels", number)
        labels = torch.randint(0, data.num_classes, (len(phase.train),), generator=stream)
        y = data.train.y.clone()
        y[phase.train.to(device)] = labels.to(device)
        images = Images(data.train.x, y)
        return replace(data, train=images, test=images)
    if config.name == "permuted_pixels":
        stream = torch_stream(seed, "data", "pixels", number)
        order = torch.randperm(math.prod(data.input_shape[1:]), generator=stream).to(device)
        parts = [(images.pixels(), images.y) for images in (data.train, data.test)]
        # All channels alike.
        train, test = (Images(x.flatten(2)[:, :, order].view_as(x), y) for x, y in parts)
        return replace(data, train=train, test=test)
    if config.name == "flipped_bits":
        train, test = bit_flipping(seed, number, len(data.train), config.flip or "all")
        return replace(data, train=train, test=test).to(device)
    return data
