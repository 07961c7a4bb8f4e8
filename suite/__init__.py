"""Compare nccl, gloo and mpi on the same PyTorch DDP job, with intervals, verdicts and proof."""

__version__ = "0.1.0"
