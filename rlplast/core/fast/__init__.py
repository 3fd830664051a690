"""Faster ways to compute what PyTorch and NumPy compute too."""
