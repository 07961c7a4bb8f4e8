"""Process groups: one control group for everything that is not measured, one measured group for the backend.

The default group is always gloo, over ``env://``. Barriers and control data go over it, the same for every
backend, so that the measured backend does nothing but what is measured. The measured group is a group of its
own over all ranks. (The other order, mpi as default with gloo beside it, does not work in torch.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from suite.errors import LaunchError
from suite.worker.device import Device
from suite.worker.sockets import connections

RENDEZVOUS_SECONDS = 120.0


class Groups:
    """The two groups of a launch, and what is said over the control group.

    Args:
        backend: the measured backend.
        rank, world_size: this process.
        device: what the measured group's tensors live on.
        deadline_seconds: how long any operation may wait for a peer.

    Raises:
        LaunchError: this torch lacks the backend.
        RuntimeError: a peer did not come.
    """

    def __init__(self, backend: str, rank: int, world_size: int, device: Device, deadline_seconds: float) -> None:
        reason = missing_backend(backend)
        if reason:
            raise LaunchError(f"{backend}: {reason}.", fix="use an image that has this backend.")
        self.backend = backend
        self.rank = rank
        self.world_size = world_size
        self.device = device
        timeout = timedelta(seconds=max(deadline_seconds, 1.0))
        _choose_store_implementation()
        meeting = timedelta(seconds=min(deadline_seconds, RENDEZVOUS_SECONDS))
        store, _, _ = next(iter(rendezvous("env://", rank, world_size, timeout=meeting)))
        store.set_timeout(timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        self.barrier()  # everybody has come before the measured backend starts to build its own connections
        self.earlier_connections = connections()  # the control group's and the store's
        self.measured = dist.new_group(backend=backend, timeout=timeout)

    def barrier(self) -> None:
        """Wait for all ranks, over the control group."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's ``value``, by rank, over the control group."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def largest(self, value: float) -> float:
        """The largest of all ranks' values, over the control group."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def before_collective(self) -> None:
        """What the measured backend needs before it may read a tensor.

        The upstream mpi backend hands the tensor's address to MPI without waiting for the stream that fills
        it, so with CUDA tensors the device has to be synchronised first. Nothing for all others.
        """
        if self.needs_synchronise:
            self.device.synchronise()

    @property
    def needs_synchronise(self) -> bool:
        """Whether ``before_collective`` has to do anything."""
        return self.backend == "mpi" and self.device.kind == "cuda"

    def close(self) -> None:
        """Leave all groups together: a rank that left alone could find its peers already gone."""
        self.device.synchronise()
        self.barrier()
        dist.destroy_process_group(self.measured)
        self.barrier()
        dist.destroy_process_group()


def missing_backend(backend: str) -> str | None:
    """Why this torch cannot use a backend; None when it can."""
    if not dist.is_available():
        return "this torch has no distributed package"
    checks: dict[str, Callable[[], bool]] = {
        "nccl": dist.is_nccl_available,
        "mpi": dist.is_mpi_available,
        "gloo": getattr(dist, "is_gloo_available", lambda: True),
    }
    return None if checks[backend]() else f"this torch has no {backend} backend"


def _choose_store_implementation() -> None:
    """Ask for the store without libuv where torch was built without it: its default would fail there."""
    if "USE_LIBUV" in os.environ:
        return
    try:
        dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=10), use_libuv=True)
    except TypeError:
        return  # before torch 2.3 there was no libuv to choose
    except RuntimeError as error:
        if "libuv" in str(error):
            os.environ["USE_LIBUV"] = "0"
