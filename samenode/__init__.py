"""samenode: do custom kernels make a served model faster on this node, and keep it accurate?"""

__version__ = "0.1.0"
