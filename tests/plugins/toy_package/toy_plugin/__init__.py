"""A package that brings a method, environments and a kind of run."""
