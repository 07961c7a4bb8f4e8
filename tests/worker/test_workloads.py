# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from suite.errors import LaunchError
from suite.worker.transformer import GPT2_SMALL, TINY, Transformer
from suite.worker.workloads import DEFAULT_BATCH, build, unavailable

CPU = torch.device("cpu")


def made(name: str, *, seed: int = 1, rank: int = 0, batch: int | None = None) -> Any:
    return build(name, seed=seed, rank=rank, device=CPU, batch_size=batch)


def test_the_published_workload_has_the_published_size() -> None:
    linear = made("linear")
    assert linear.parameters == 1024 * 1024 + 1024
    assert linear.gradient_bytes == linear.parameter_bytes == 4 * linear.parameters
    assert tuple(linear.inputs.shape) == (64, 1024)
    assert linear.batch_size == DEFAULT_BATCH["linear"] == 64


def test_the_transformer_has_gpt_2s_parameter_count() -> None:
    with torch.device("meta"):
        model = Transformer(GPT2_SMALL)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_the_tiny_transformer_fits_a_small_machine() -> None:
    assert made("transformer-tiny").parameters == 3_700_224


def test_the_transformer_predicts_one_token_from_those_before_it() -> None:
    workload = made("transformer-tiny", batch=2)
    changed = workload.inputs.clone()
    changed[:, -1] = (changed[:, -1] + 1) % TINY.vocabulary
    with torch.no_grad():
        logits = workload.model(workload.inputs).view(2, TINY.sequence, TINY.vocabulary)
        after = workload.model(changed).view(2, TINY.sequence, TINY.vocabulary)
    assert torch.equal(logits[:, :-1], after[:, :-1])  # causal: the past does not see the change
    assert not torch.equal(logits[:, -1], after[:, -1])
    assert workload.targets.numel() == 2 * TINY.sequence


@pytest.mark.parametrize("name", ["linear", "transformer-tiny"])
def test_one_seed_gives_one_model_and_each_rank_its_own_data(name: str) -> None:
    first, again, other = made(name), made(name), made(name, rank=1)
    for a, b, c in zip(first.model.parameters(), again.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_another_seed_gives_other_weights_and_data() -> None:
    first, other = made("linear"), made("linear", seed=2)
    assert not torch.equal(first.model.weight, other.model.weight)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("name", ["linear", "transformer-tiny"])
def test_training_lowers_the_loss_of_every_workload(name: str) -> None:
    workload = made(name, batch=4)
    optimizer = workload.optimizer(workload.model.parameters())
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = workload.loss_fn(workload.model(workload.inputs), workload.targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)


def test_resnet50_is_there_or_says_why_not() -> None:
    reason = unavailable("resnet50")
    if reason:
        assert "torchvision cannot be imported" in reason
        with pytest.raises(LaunchError, match="torchvision"):
            made("resnet50")
        return
    workload = made("resnet50", batch=2)
    assert workload.parameters == 25_557_032
    assert tuple(workload.inputs.shape) == (2, 3, 224, 224)


def test_an_unknown_workload_is_refused_with_those_that_exist() -> None:
    with pytest.raises(LaunchError, match="linear, resnet50, transformer, transformer-tiny or package"):
        made("bert")


USER = '''
import torch

def tiny(seed, device, batch_size):
    """A user's model."""
    torch.manual_seed(seed)
    inputs = torch.randn(batch_size or 3, 4, device=device)
    return torch.nn.Linear(4, 2), inputs, torch.zeros(inputs.shape[0], 2), torch.nn.MSELoss(), torch.optim.Adam

def half(seed, device, batch_size):
    return torch.nn.Linear(4, 2).half(), None, None, None, None

def wrong(seed, device, batch_size):
    return 1, 2
'''


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users_own", raising=False)
    return "users_own"


def test_a_users_own_workload_is_built_by_its_function(user_module: str) -> None:
    workload = made(f"{user_module}:tiny")
    assert workload.batch_size == 3
    assert workload.description == "user's users_own:tiny: A user's model."
    assert workload.parameters == 10
    assert made(f"{user_module}:tiny", batch=8).batch_size == 8


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", "returned tuple, not the five parts"),
        ("half", "parameters of torch.float16; float32 is compared"),
        ("missing", "no attribute 'missing'"),
    ],
)
def test_a_users_mistake_is_named(user_module: str, function: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        made(f"{user_module}:{function}")
