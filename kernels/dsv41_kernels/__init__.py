"""Kernels for DeepSeek-V4.1-Flash: definitions, gfx950 and Hopper implementations."""

__version__ = "0.1.0"
