"""Core: clock, errors, registry, streams, and the packages `network`, `method` and `fast`."""
