"""What is trained: model, synthetic data on the device, loss and optimizer, all float32 and seeded.

The seed is the block's, the same for every arm: all arms of a block train the same weights on the same data.
Each rank has data of its own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from suite.errors import LaunchError
from suite.worker.transformer import GPT2_SMALL, TINY, Transformer, TransformerShape

BUILT_IN = ("linear", "resnet50", "transformer", "transformer-tiny")
DEFAULT_BATCH = {"linear": 64, "resnet50": 16, "transformer": 4, "transformer-tiny": 4}
IMAGENET_CLASSES = 1000
LEARNING_RATE = 0.01

LossFunction = Callable[[Any, Any], torch.Tensor]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class UserWorkload(NamedTuple):
    """What a user's own ``package.module:function`` returns, or a plain tuple of the same five.

    The function is called as ``function(seed, device, batch_size)``: ``seed`` (int) is the same on every rank
    and for every backend, ``device`` is a ``torch.device``, ``batch_size`` (int or None) is the number of
    samples per rank, None for the workload's own. It must build the same weights for the same seed; for data
    that differ by rank it can add the environment's ``RANK`` to the seed. Everything must be on ``device``.

    ``inputs`` is passed to the model as its only argument, ``loss_fn(outputs, targets)`` gives a scalar, and
    ``optimizer(parameters)`` makes the optimizer.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    loss_fn: LossFunction
    optimizer: OptimizerFactory


@dataclass(frozen=True)
class Workload:
    """One built workload: fresh weights, this rank's data."""

    name: str
    model: nn.Module
    inputs: Any
    targets: Any
    loss_fn: LossFunction
    optimizer: OptimizerFactory
    batch_size: int
    seed: int
    description: str

    @property
    def parameters(self) -> int:
        """Number of parameters, each shared one counted once."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    @property
    def gradient_bytes(self) -> int:
        """Bytes of what a step has to reduce: the parameters that are trained."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)


def build(name: str, *, seed: int, rank: int, device: torch.device, batch_size: int | None) -> Workload:
    """Build a workload; the same arguments give the same weights and data, bit for bit, on one machine.

    Raises:
        LaunchError: it is unknown, or this environment lacks what it needs.
    """
    torch.manual_seed(seed)
    if ":" in name:
        return _user(name, seed, device, batch_size)
    reason = unavailable(name)
    if reason:
        raise LaunchError(f"Workload {name}: {reason}.")
    batch = batch_size or DEFAULT_BATCH[name]
    data = torch.Generator().manual_seed((seed * 1_000_003 + rank + 1) % 2**63)
    if name == "linear":
        return _linear(seed, data, device, batch)
    if name == "resnet50":
        return _resnet50(seed, data, device, batch)
    return _transformer(name, seed, data, device, batch, GPT2_SMALL if name == "transformer" else TINY)


def unavailable(name: str) -> str | None:
    """Why a built-in workload cannot be built here; None when it can."""
    if name not in BUILT_IN:
        return f"there is no such workload; use {', '.join(BUILT_IN)} or package.module:function"
    if name == "resnet50":
        try:
            importlib.import_module("torchvision.models")
        except Exception as error:  # a torchvision of another torch fails in many ways
            return f"torchvision cannot be imported ({type(error).__name__})"
    return None


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


def _linear(seed: int, data: torch.Generator, device: torch.device, batch: int) -> Workload:
    """The published workload: one linear layer of 1024 by 1024, mean squared error."""
    width = 1024
    return Workload(
        name="linear",
        model=nn.Linear(width, width).to(device),
        inputs=torch.randn(batch, width, generator=data).to(device),
        targets=torch.randn(batch, width, generator=data).to(device),
        loss_fn=nn.MSELoss(),
        optimizer=_sgd,
        batch_size=batch,
        seed=seed,
        description=f"Linear({width}, {width}), MSE loss, SGD {LEARNING_RATE}, batch {batch} x {width}",
    )


def _resnet50(seed: int, data: torch.Generator, device: torch.device, batch: int) -> Workload:
    models: Any = importlib.import_module("torchvision.models")
    side = 224
    return Workload(
        name="resnet50",
        model=models.resnet50(weights=None).to(device),
        inputs=torch.randn(batch, 3, side, side, generator=data).to(device),
        targets=torch.randint(IMAGENET_CLASSES, (batch,), generator=data).to(device),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=_sgd,
        batch_size=batch,
        seed=seed,
        description=f"torchvision ResNet-50, cross entropy, SGD {LEARNING_RATE}, batch {batch} x 3 x {side} x {side}",
    )


def _transformer(
    name: str, seed: int, data: torch.Generator, device: torch.device, batch: int, shape: TransformerShape
) -> Workload:
    tokens = torch.randint(shape.vocabulary, (batch, shape.sequence + 1), generator=data).to(device)
    return Workload(
        name=name,
        model=Transformer(shape).to(device),
        inputs=tokens[:, :-1].contiguous(),
        targets=tokens[:, 1:].reshape(-1),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=_sgd,
        batch_size=batch,
        seed=seed,
        description=f"{shape.describe()}, cross entropy, SGD {LEARNING_RATE}, batch {batch} x {shape.sequence} tokens",
    )


def _user(name: str, seed: int, device: torch.device, batch_size: int | None) -> Workload:
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise LaunchError(
            f"Workload {name}: {error}.", fix="make it importable in the container, e.g. by PYTHONPATH."
        ) from error
    result = function(seed, device, batch_size)
    try:
        made = UserWorkload(*result)
    except TypeError:
        raise LaunchError(
            f"Workload {name} returned {type(result).__name__}, not the five parts of a UserWorkload.",
            fix="return (model, inputs, targets, loss_fn, optimizer).",
        ) from None
    types = {str(p.dtype) for p in made.model.parameters()}
    if types != {"torch.float32"}:
        raise LaunchError(f"Workload {name} has parameters of {', '.join(sorted(types))}; float32 is compared.")
    first = inspect.getdoc(function) or ""
    return Workload(
        name=name,
        model=made.model,
        inputs=made.inputs,
        targets=made.targets,
        loss_fn=made.loss_fn,
        optimizer=made.optimizer,
        batch_size=batch_size or _leading(made.inputs),
        seed=seed,
        description=f"user's {name}: {first.splitlines()[0] if first else type(made.model).__name__}",
    )


def _leading(inputs: Any) -> int:
    return int(inputs.shape[0]) if isinstance(inputs, torch.Tensor) and inputs.dim() else 0
