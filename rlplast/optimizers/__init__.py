"""Optimizers: those that torch lacks, and what a run does with any of them."""
