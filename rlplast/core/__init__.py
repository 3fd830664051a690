"""Core: clock, schedules, networks, edits, hooks, streams, checkpoints and the loop."""
