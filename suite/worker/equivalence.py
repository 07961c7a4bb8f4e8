"""The gate: a backend's averaged gradients must be right before it is timed.

On a model of its own, in an untimed phase: each step's local gradients are caught before DDP sees them, gathered
over the control group, averaged in float64 and compared with what the measured backend made of them. Only the
control group's own correctness is relied upon, and no second computation of the gradients: caught in the same
backward pass, they are the very numbers that were reduced.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from suite.records import Equivalence
from suite.worker.groups import Groups
from suite.worker.steps import Trainee

UNIT_ROUNDOFF = 2.0**-24  # float32, rounding to nearest
# Below the smallest normal number the relative bound says nothing: hardware may flush to zero there.
SMALLEST_NORMAL = 2.0**-126
SLICE_ELEMENTS = 1 << 20  # gathered at once: bounds memory to world size × 4 MiB
# Models with more gradient bytes than this are compared element by element in three steps, not in all.
FULL_CHECK_BYTES = 32 * 1024 * 1024


@dataclass
class _Findings:
    worst: float = 0.0
    faults: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.faults.append(text)


def run_gate(trainee: Trainee, groups: Groups, steps: int, *, corrupt: bool = False) -> Equivalence:
    """Train ``steps`` steps and check each (METHOD.md, "A result must be right before it is fast").

    Every rank gets the same status: what one rank sees is told to all.

    Args:
        trainee: a distributed model of its own, freshly built.
        groups: the launch's groups.
        steps: how many; 0 gives "not run".
        corrupt: change this rank's averaged gradient after the collective: the negative control.
    """
    if steps <= 0:
        return Equivalence("not run", "no steps were asked for")
    parameters = [(name, p) for name, p in trainee.model.named_parameters() if p.requires_grad]
    gradient_bytes = sum(p.numel() * p.element_size() for _, p in parameters)
    checked = _checked_steps(steps, gradient_bytes)
    local: dict[str, torch.Tensor] = {}
    hooks = [p.register_hook(_catcher(local, name)) for name, p in parameters]
    found = _Findings()
    try:
        for step in range(steps):
            _gate_step(trainee, groups, step, parameters, local, step in checked, corrupt, found)
    finally:
        for hook in hooks:
            hook.remove()
    return _conclude(found, groups, steps, len(checked))


def _checked_steps(steps: int, gradient_bytes: int) -> set[int]:
    """All steps of small models; of large ones the first, the one after the buckets' rebuild, and the last."""
    if gradient_bytes <= FULL_CHECK_BYTES:
        return set(range(steps))
    return {0, min(1, steps - 1), steps - 1}


def _catcher(local: dict[str, torch.Tensor], name: str):  # type: ignore[no-untyped-def]
    """A tensor hook: it sees the whole local gradient, before it is accumulated and before DDP reduces it."""

    def catch(gradient: torch.Tensor) -> None:
        local[name] = gradient.detach().to("cpu", copy=True)

    return catch


def _gate_step(
    trainee: Trainee,
    groups: Groups,
    step: int,
    parameters: list[tuple[str, torch.nn.Parameter]],
    local: dict[str, torch.Tensor],
    check: bool,
    corrupt: bool,
    found: _Findings,
) -> None:
    local.clear()
    trainee.optimizer.zero_grad(set_to_none=True)
    loss = trainee.loss_fn(trainee.model(trainee.inputs), trainee.targets)
    loss.backward()
    groups.device.synchronise()
    if corrupt:
        _corrupt(parameters)
    value = float(loss.detach())
    if math.isfinite(value):
        found.losses.append(value)
    else:
        found.fault(f"step {step}: the loss is {value}")
    if check:
        for name, parameter in parameters:
            error = worst_error(parameter.grad, local.get(name), parameter, groups)
            found.worst = max(found.worst, error)
            if not error <= 1:
                found.fault(f"step {step}: the gradient of {name} is off by {error:.3g} times the bound")
    trainee.optimizer.step()
    found.hashes.append(parameter_hash([p for _, p in parameters]))
    if len(set(groups.gather(found.hashes[-1]))) > 1:
        found.fault(f"step {step}: the parameters differ between ranks")


def _corrupt(parameters: list[tuple[str, torch.nn.Parameter]]) -> None:
    for _, parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.view(-1)[0] += 1.0 + 10 * parameter.grad.abs().max()
            return


def worst_error(
    averaged: torch.Tensor | None, local: torch.Tensor | None, parameter: torch.Tensor, groups: Groups
) -> float:
    """Largest |error| ÷ bound over the elements of one parameter's gradient; above 1 is wrong.

    bound = 4(n−1)·2⁻²⁴·Σ|g_r|/n + n·2⁻¹²⁶ elementwise, g_r the ranks' local gradients; the last term only
    covers underflow. A gradient that some rank lacks counts as zero there. Infinite where anything is not
    finite. Collective: all ranks must call it.
    """
    n = groups.world_size
    mine = torch.zeros(parameter.numel()) if local is None else local.reshape(-1).to(torch.float32)
    result = torch.zeros(parameter.numel()) if averaged is None else averaged.detach().reshape(-1).cpu()
    worst = 0.0
    for start in range(0, parameter.numel(), SLICE_ELEMENTS):
        part = mine[start : start + SLICE_ELEMENTS].contiguous()
        parts = [torch.empty_like(part) for _ in range(n)]
        dist.all_gather(parts, part)
        stacked = torch.stack(parts).double()  # (n, elements)
        error = (result[start : start + SLICE_ELEMENTS].double() - stacked.mean(dim=0)).abs()
        bound = 4 * (n - 1) * UNIT_ROUNDOFF * stacked.abs().mean(dim=0) + n * SMALLEST_NORMAL
        ratio = float((error / bound).max())
        worst = max(worst, ratio if math.isfinite(ratio) else math.inf)
    return worst


def parameter_hash(parameters: list[torch.nn.Parameter]) -> str:
    """SHA-256 over the parameters' bytes in order, shortened to 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(memoryview(parameter.detach().contiguous().cpu().numpy().reshape(-1)).cast("B"))
    return digest.hexdigest()[:16]


def _conclude(found: _Findings, groups: Groups, steps: int, checked: int) -> Equivalence:
    seen = groups.gather((found.faults[:1], found.worst))
    faulty = [f"rank {rank}, {faults[0]}" for rank, (faults, _) in enumerate(seen) if faults]
    worst = max(worst for _, worst in seen)
    own = found.worst if math.isfinite(found.worst) else None
    if faulty:
        detail = "; ".join(faulty[:4]) + (f"; and {len(faulty) - 4} more ranks" if len(faulty) > 4 else "")
        return Equivalence("fail", detail, own, tuple(found.losses), tuple(found.hashes))
    detail = (
        f"gradients of {checked} of {steps} steps within {worst:.2g} of the bound, "
        f"parameters equal on {groups.world_size} ranks"
    )
    return Equivalence("pass", detail, own, tuple(found.losses), tuple(found.hashes))
