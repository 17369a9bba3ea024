"""Whether the tests have the GPU that the Triton kernels are written for."""

import torch

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
