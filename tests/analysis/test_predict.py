"""Predictions from a run whose parts are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from suite.analysis.load import RunData, load_run
from suite.analysis.predict import predict
from suite.errors import UsageError
from suite.records import RankRecord, StepSamples
from suite.report.forecast import forecast_table
from tests.support.synthetic import BUCKETS, TWO_ARMS, ArmTruth, Truth, all_reduce_seconds, write_run

COMPUTE = 0.036
FORWARD, BACKWARD = 0.3 * COMPUTE, 0.6 * COMPUTE


def exposed_truth(arm: ArmTruth, world_size: int) -> float:
    """What one workload exposes if buckets go out one after the other as their gradients are there."""
    ready, ended = 0.0, 0.0
    for size in BUCKETS:
        ready += BACKWARD * size / sum(BUCKETS)
        ended = max(ready, ended) + all_reduce_seconds(arm, size, world_size)
    return max(0.0, ended - BACKWARD)


def physical(record: RankRecord) -> RankRecord:
    """Steps that are exactly compute and exposed communication, the second workload with half the compute."""
    if record.kind != "train" or record.world_size < 2:
        return record
    half = 0.5 if record.workload == "resnet50" else 1.0
    arm = TWO_ARMS[record.arm]
    ready, ended = 0.0, 0.0
    for size in BUCKETS:
        ready += half * BACKWARD * size / sum(BUCKETS)
        ended = max(ready, ended) + all_reduce_seconds(arm, size, record.world_size)
    step = half * COMPUTE + max(0.0, ended - half * BACKWARD)

    def ns(seconds: float) -> tuple[int, ...]:
        return (round(seconds * 1e9),) * 30

    return dataclasses.replace(
        record,
        synchronised=StepSamples(ns(step)),
        nosync=StepSamples(ns(half * COMPUTE), ns(half * FORWARD), ns(half * BACKWARD), ns(half * 0.1 * COMPUTE)),
        free_running=(),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    truth = Truth(TWO_ARMS, workloads=("linear", "resnet50"), worlds=(2, 4), sweep=True, blocks=6)
    return load_run(write_run(tmp_path_factory.mktemp("predict"), truth, change=physical))


def test_fitted_on_one_workload_it_predicts_the_other(data: RunData) -> None:
    for forecast in predict(data, workload="resnet50"):
        assert forecast.calibrated_on == "linear at world size 4"
        assert forecast.communication_scale == pytest.approx(1.0, rel=0.05)
        assert forecast.measured_seconds is not None
        assert forecast.error == pytest.approx(0.0, abs=0.03)
        assert forecast.result.extrapolations == ()


def test_exposed_communication_is_the_composition(data: RunData) -> None:
    found = {f.arm: f for f in predict(data, workload="linear")}
    for arm, truth in TWO_ARMS.items():
        assert found[arm].result.exposed_seconds == pytest.approx(exposed_truth(truth, 4), rel=0.06)
        assert found[arm].result.step_seconds == pytest.approx(COMPUTE + exposed_truth(truth, 4), rel=0.03)
        interval = found[arm].result.interval
        assert interval is not None
        assert interval.contains(found[arm].result.step_seconds)


def test_another_size_and_world_are_said_to_be_extrapolated(data: RunData) -> None:
    forecast = predict(data, workload="linear", parameters=1.3e9, hosts=64)[0]
    assert forecast.world_size == 64
    assert forecast.measured_seconds is None
    assert {e.quantity for e in forecast.result.extrapolations} == {"bucket_bytes", "world_size", "parameters"}
    text = forecast_table([forecast])
    assert text.count("extrapolated") >= 4
    assert "1.3e+09 parameters, 64 ranks: predicted, not measured" in text


def test_twice_the_batch_takes_twice_the_forward_and_backward(data: RunData) -> None:
    one = predict(data, workload="linear", batch_size=64)[0]
    two = predict(data, workload="linear", batch_size=128)[0]
    compute = one.result.step_seconds - one.result.exposed_seconds
    assert two.result.step_seconds - two.result.exposed_seconds == pytest.approx(compute + FORWARD + BACKWARD, rel=1e-3)
    assert any("batch" in note for note in two.notes)
    assert two.measured_seconds is None


def test_one_host_communicates_nothing(data: RunData) -> None:
    forecast = predict(data, workload="linear", hosts=1)[0]
    assert forecast.result.exposed_seconds == 0.0
    assert forecast.result.step_seconds == pytest.approx(COMPUTE, rel=0.02)


def test_the_table_holds_prediction_against_measurement(data: RunData) -> None:
    text = forecast_table(predict(data, workload="resnet50"))
    heading = text.splitlines()[1].split()
    assert heading[-3:] == ["measured", "off", "by"]
    assert "It fails where" in text


@pytest.mark.parametrize("options", [{"parameters": 0.0}, {"hosts": 0}, {"workload": "transformer"}])
def test_impossible_questions_are_refused(data: RunData, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        predict(data, **options)  # type: ignore[arg-type]


def test_a_run_without_a_sweep_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workload linear,collectives"):
        predict(load_run(write_run(tmp_path, Truth(TWO_ARMS))), workload="linear")
