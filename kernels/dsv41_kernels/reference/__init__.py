"""Torch definitions of what the kernels compute, for the CPU and any other device."""
