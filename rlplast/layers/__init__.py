"""Layers: modules that are swapped in when a network is built."""

from rlplast.layers.stacked import StackedLinear

__all__ = ["StackedLinear"]
