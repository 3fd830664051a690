"""Measurements of speed, ours and other libraries'; README.md lists them."""
