"""Agents: reinforcement learning that the loop of rlplast drives."""
