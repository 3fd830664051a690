"""Faster ways to compute what PyTorch and NumPy compute too; nothing else knows how they do it.

- `linear`: products of matrices in float32 on a CPU.
- `symmetric`: products that are symmetric.
- `adam`: a step of Adam inside a compiled update.
- `graphs`: pieces of work on a GPU as CUDA graphs.
- `mapped_memory`: arrays that files are mapped into.
"""
