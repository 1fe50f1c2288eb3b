"""Moves JAX Pallas kernels from the Triton backend to Mosaic GPU, source to source."""

__version__ = "0.1.0"
