# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
"""The links without a network: what each rank of a pair does first. Whole measurements are in test_launch.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from suite.worker import link


class FirstCall(Exception):
    """What a rank does first, on which group."""


@pytest.mark.parametrize(("rank", "does"), [(0, "send"), (1, "recv")])
def test_a_pairs_ranks_meet_in_the_measured_backend_before_either_waits_for_the_other_elsewhere(
    rank: int, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(name: str) -> Any:
        def call(_data: Any, _peer: int, group: Any = "control") -> None:
            raise FirstCall(name, group)

        return call

    # NCCL's way of making communicators needs two GPUs: torch.distributed is stood in for.
    stand_in = SimpleNamespace(**{name: stop(name) for name in ("send", "recv", "isend", "irecv")})
    monkeypatch.setattr(link, "dist", stand_in)
    device = SimpleNamespace(torch_device=torch.device("cpu"), synchronise=lambda: None)
    groups: Any = SimpleNamespace(
        world_size=2, rank=rank, backend="nccl", device=device, measured="measured", barrier=lambda: None
    )
    with pytest.raises(FirstCall) as caught:
        link.measure_links(groups)
    assert caught.value.args == (does, "measured")
