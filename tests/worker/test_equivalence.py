# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from suite.records import DdpOptions
from suite.worker import equivalence
from suite.worker.equivalence import SMALLEST_NORMAL, UNIT_ROUNDOFF, parameter_hash, run_gate, worst_error
from suite.worker.groups import Groups
from suite.worker.steps import distributed
from suite.worker.workloads import build


class TwoRanks:
    """Stands in for process groups: what ``worst_error`` asks of them is the number of ranks."""

    world_size = 2


@pytest.fixture
def second_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """A stand-in for the control group's all_gather: the other rank's local gradient is the given one."""

    def use(other: Any) -> Any:
        def all_gather(parts: list[Any], own: Any) -> None:
            parts[0].copy_(own)
            parts[1].copy_(other)

        monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
        return TwoRanks()

    return use


def test_the_error_is_measured_against_the_documented_bound(second_rank: Callable[[Any], Any]) -> None:
    # g = 1 and 3: mean 2, bound 4·1·2⁻²⁴·(1+3)/2 = 8·2⁻²⁴. An averaged gradient off by 4·2⁻²² is twice that... exactly.
    parameter = torch.zeros(1)
    groups = second_rank(torch.tensor([3.0]))
    bound = 8 * UNIT_ROUNDOFF + 2 * SMALLEST_NORMAL
    off = 2.0 + 2.0**-20  # representable in float32
    found = worst_error(torch.tensor([off]), torch.tensor([1.0]), parameter, groups)
    assert found == pytest.approx(2.0**-20 / bound, rel=1e-9)
    assert found > 1


def test_an_exact_average_has_no_error_and_cancelling_gradients_still_have_a_bound(
    second_rank: Callable[[Any], Any],
) -> None:
    groups = second_rank(torch.tensor([-1.0]))
    assert worst_error(torch.tensor([0.0]), torch.tensor([1.0]), torch.zeros(1), groups) == 0
    # The bound comes from the sum of magnitudes, not from the magnitude of the sum.
    assert worst_error(torch.tensor([2.0**-24]), torch.tensor([1.0]), torch.zeros(1), groups) == pytest.approx(0.25)


def test_what_is_not_finite_is_infinitely_wrong(second_rank: Callable[[Any], Any]) -> None:
    groups = second_rank(torch.tensor([1.0]))
    for bad in (float("nan"), float("inf")):
        assert worst_error(torch.tensor([bad]), torch.tensor([1.0]), torch.zeros(1), groups) == float("inf")


def test_a_rank_without_a_gradient_counts_as_zero(second_rank: Callable[[Any], Any]) -> None:
    groups = second_rank(torch.tensor([1.0]))
    assert worst_error(torch.tensor([0.5]), None, torch.zeros(1), groups) == 0


def test_gradients_longer_than_a_slice_are_checked_to_their_last_element(
    second_rank: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "SLICE_ELEMENTS", 4)
    groups = second_rank(torch.tensor(0.0))
    averaged = torch.full((10,), 0.5)
    assert worst_error(averaged, torch.ones(10), torch.zeros(10), groups) == 0
    averaged[-1] = 1.0
    assert worst_error(averaged, torch.ones(10), torch.zeros(10), groups) > 1e6


def test_a_hash_changes_with_a_single_bit_of_a_single_parameter() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))]
    before = parameter_hash(parameters)
    assert before == parameter_hash(parameters)
    with torch.no_grad():
        parameters[1][1, 1] += 2.0**-23
    assert parameter_hash(parameters) != before
    assert len(before) == 16


def gate(groups: Groups, *, steps: int = 3, corrupt: bool = False, batch: int = 4) -> Any:
    workload = build("linear", seed=1, rank=0, device=torch.device("cpu"), batch_size=batch)
    return run_gate(distributed(workload, groups, DdpOptions()), groups, steps, corrupt=corrupt)


def test_one_rank_passes_without_any_error(one_rank: Callable[[], Groups]) -> None:
    result = gate(one_rank())
    assert (result.status, result.worst_error) == ("pass", 0.0)
    assert len(result.losses) == len(result.parameter_hashes) == 3


def test_one_corrupted_rank_fails(one_rank: Callable[[], Groups]) -> None:
    result = gate(one_rank(), corrupt=True)
    assert result.status == "fail"
    assert result.detail.startswith("rank 0, step 0: the gradient of module.weight is off by")


def test_no_steps_are_no_pass(one_rank: Callable[[], Groups]) -> None:
    assert gate(one_rank(), steps=0).status == "not run"


def test_a_loss_that_is_no_number_fails_and_leaves_a_record_that_can_be_written(
    one_rank: Callable[[], Groups],
) -> None:
    groups = one_rank()
    workload = build("linear", seed=1, rank=0, device=torch.device("cpu"), batch_size=2)
    workload.inputs[0, 0] = float("nan")
    result = run_gate(distributed(workload, groups, DdpOptions()), groups, 2)
    assert result.status == "fail"
    assert "the loss is nan" in result.detail
    assert result.losses == ()
    assert result.worst_error is None  # it is infinite, which no record may hold


def test_large_models_are_compared_in_three_steps_and_small_ones_in_all() -> None:
    assert equivalence._checked_steps(10, 4_000_000) == set(range(10))
    assert equivalence._checked_steps(10, 500_000_000) == {0, 1, 9}
    assert equivalence._checked_steps(1, 500_000_000) == {0}
