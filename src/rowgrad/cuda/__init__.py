"""CUDA kernels: the catalogue's kernel ops on tensors of one GPU, after their records have validated the call.

`rowgrad.torch` imports this package at the first CUDA tensor. The kernels are CUDA C++ in `source/`; NVRTC, which comes
with torch, compiles each on first use. `docs/reference/cuda.md` documents their guarantees.
"""
