"""MPI without PyTorch's layer: the same all-reduce on the same kind of buffer through mpi4py.

mpi4py shares the MPI library that torch has initialised (at thread level "serialized": never call it while a
collective of torch is under way) and leaves its end to torch.
"""

from __future__ import annotations

from typing import Any

import torch

from suite.worker.collectives import ELEMENT_BYTES, Call, UnavailableError
from suite.worker.groups import Groups
from suite.worker.pattern import count_wrong, fill


def load_mpi() -> Any:
    """mpi4py's MPI module on the library that torch has initialised.

    Raises:
        UnavailableError: there is no mpi4py, or MPI has not been initialised by torch.
    """
    try:
        import mpi4py  # noqa: PLC0415  # only images with MPI have it

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(f"mpi4py cannot be imported: {error}") from None
    if not MPI.Is_initialized():
        raise UnavailableError("torch has not initialised MPI: mpi4py is linked with another library")
    return MPI


def make_all_reduce(groups: Groups, size_bytes: int) -> Call:
    """mpi4py's Allreduce in place on float32.

    Raises:
        UnavailableError: see ``load_mpi``; on every rank alike, since the image is one.
    """
    mpi = load_mpi()
    world = mpi.COMM_WORLD
    n, rank = groups.world_size, groups.rank
    data = torch.zeros(max(1, size_bytes // ELEMENT_BYTES), device=groups.device.torch_device)
    # mpi4py takes a CUDA tensor by its array interface; Open MPI must be CUDA-aware, as for torch's own backend.
    buffer = [data if data.is_cuda else data.numpy(), mpi.FLOAT]

    def run() -> None:
        groups.before_collective()
        world.Allreduce(mpi.IN_PLACE, buffer)

    return Call(
        "all_reduce",
        data.numel() * ELEMENT_BYTES,
        run,
        fill=lambda: fill(data, rank),
        wrong=lambda: count_wrong(data, n, n * (n - 1) // 2),
        clear=data.zero_,
        implementation="mpi4py",
    )
