"""Kernels for CUDA: the catalogue's kernel ops on tensors of one GPU, already judged by their records.

`rowgrad.torch` loads this room at the first CUDA tensor. The kernels are CUDA C++ in `source/`, compiled when they are
first needed by the NVRTC that torch brings along; `docs/cuda.md` says what they promise.
"""
