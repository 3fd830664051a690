"""Layers: modules that are swapped in when a network is built."""

from rlplast.layers.lifecycle import Lifecycle
from rlplast.layers.lifecycle_modules import (
    LifecycleConv2d,
    LifecycleLinear,
    LifecycleMultiheadAttention,
    StackedLifecycleLinear,
)
from rlplast.layers.stacked import StackedLayerNorm, StackedLinear

__all__ = [
    "Lifecycle",
    "LifecycleConv2d",
    "LifecycleLinear",
    "LifecycleMultiheadAttention",
    "StackedLayerNorm",
    "StackedLifecycleLinear",
    "StackedLinear",
]
