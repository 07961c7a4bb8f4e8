"""Summaries of runs whose truth is known: the right numbers, and the right refusals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from suite import codec, paths
from suite.analysis.load import load_run
from suite.analysis.summarise import summarise
from suite.paths import RunPaths
from suite.records import Equivalence, FreeRun, Manifest, RankRecord
from suite.summary import Row, Summary
from tests.support.synthetic import (
    BUCKETS,
    TWO_ARMS,
    ArmTruth,
    Truth,
    all_reduce_seconds,
    edit_manifest,
    write_run,
)

QUIET = Truth(TWO_ARMS, block_effect=0.0, launch_effect=0.0)
THREE = {**TWO_ARMS, "gloo-b": ArmTruth(0.0431, 0.036, backend="gloo")}


def row_of(summary: Summary, arm: str, world_size: int = 4, workload: str = "linear") -> Row:
    return next(r for r in summary.rows if (r.arm, r.world_size, r.workload) == (arm, world_size, workload))


def test_a_quiet_run_gives_back_every_number_that_was_put_in(tmp_path: Path) -> None:
    row = row_of(summarise(write_run(tmp_path, QUIET)), "gloo")
    truth = TWO_ARMS["gloo"]
    assert row.status == "ok"
    assert row.step_seconds is not None
    assert row.step_seconds.median == pytest.approx(truth.step, rel=1e-6)
    assert row.step_seconds.ci == pytest.approx((truth.step, truth.step), rel=1e-6)
    assert (row.step_seconds.min, row.step_seconds.max) == pytest.approx(
        (0.99 * truth.step, 1.01 * truth.step), rel=1e-6
    )
    assert row.compute_seconds == pytest.approx(truth.nosync, rel=1e-6)
    assert row.exposed_communication_seconds is not None
    assert row.exposed_communication_seconds.median == pytest.approx(truth.step - truth.nosync, rel=1e-5)
    assert row.exposed_share == pytest.approx(1 - truth.nosync / truth.step, rel=1e-5)
    total = sum(all_reduce_seconds(truth, size, 4) for size in BUCKETS)
    assert row.communication_seconds == pytest.approx(total, rel=1e-6)
    assert row.hidden_share == pytest.approx(1 - (truth.step - truth.nosync) / total, rel=1e-5)
    assert row.single_process_seconds == pytest.approx(0.030, rel=1e-6)
    assert row.weak_scaling_efficiency == pytest.approx(0.030 / truth.step, rel=1e-5)
    assert row.skew_seconds == pytest.approx(0.01 * truth.step, rel=1e-2)
    largest = max(BUCKETS)
    assert row.busbw_bytes_per_second == pytest.approx(1.5 * largest / all_reduce_seconds(truth, largest, 4), rel=1e-6)
    assert row.samples_per_second == pytest.approx(64 * 4 / truth.step, rel=1e-3)
    assert row.between_launch_cv == pytest.approx(0.0, abs=1e-6)
    assert (row.steps_per_launch, row.warmup_steps, row.blocks) == (50, 20, 8)
    assert row.equivalence.status == "pass"
    assert row.transport == "tcp (eth0)"


def test_one_rank_communicates_with_nobody(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, dataclasses.replace(QUIET, worlds=(1, 2))))
    alone, pair = (next(r for r in summary.rows if r.world_size == world and r.arm == "gloo") for world in (1, 2))
    assert (alone.communication_seconds, alone.hidden_share) == (None, None)
    assert alone.exposed_communication_seconds is not None  # what DDP itself costs
    assert pair.communication_seconds is not None


def test_a_pair_gets_its_true_ratio_and_a_verdict(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS)))
    (pair,) = summary.pairs
    true = TWO_ARMS["gloo"].step / TWO_ARMS["mpi"].step
    assert (pair.a, pair.b, pair.verdict, pair.blocks) == ("gloo", "mpi", "faster", 8)
    assert pair.ratio == pytest.approx(true, rel=0.004)
    assert pair.ci is not None
    assert pair.ci[0] <= true <= pair.ci[1]
    # The smallest two-sided p of eight blocks, 2/2^8, paid for by the stopping rule's looks.
    from suite.analysis.statistics import smallest_p

    assert pair.p == pytest.approx(smallest_p(8, sequential=True))
    ratio = row_of(summary, "mpi").ratio_to_fastest
    assert ratio is not None
    assert ratio.verdict == "slower"
    assert ratio.estimate == pytest.approx(1 / (pair.ratio or 0))
    fastest = row_of(summary, "gloo").ratio_to_fastest
    assert fastest is not None
    assert (fastest.estimate, fastest.verdict) == (1.0, "fastest")


def test_a_failed_launch_leaves_an_incomplete_block_and_is_said(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, failed=frozenset({("mpi", 3)}))))
    row = row_of(summary, "mpi")
    assert (row.status, row.launches.valid, row.launches.attempted, row.blocks) == ("ok", 7, 8, 7)
    assert any("ConnectionError: peer closed" in warning and "rank 0 on h1" in warning for warning in row.warnings)
    assert summary.pairs[0].blocks == 7
    assert row_of(summary, "gloo").launches.valid == 8


def test_an_arm_whose_launches_all_fail_is_a_failed_row_with_the_first_cause(tmp_path: Path) -> None:
    failed = frozenset(("mpi", block) for block in range(8))
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, failed=failed)))
    row = row_of(summary, "mpi")
    assert row.status == "failed"
    assert row.reason is not None
    assert "ConnectionError: peer closed (rank 0 on h1, measure)" in row.reason
    assert row.step_seconds is None
    assert summary.pairs == ()
    ratio = row_of(summary, "gloo").ratio_to_fastest
    assert ratio is not None
    assert ratio.verdict == "fastest"


def test_holm_counts_the_pairs_that_were_planned_even_when_an_arm_fails(tmp_path: Path) -> None:
    failed = frozenset(("gloo-b", block) for block in range(8))
    with_failed = summarise(write_run(tmp_path / "a", Truth(THREE, failed=failed)))
    without = summarise(write_run(tmp_path / "b", Truth(TWO_ARMS)))
    assert with_failed.pairs[0].p == pytest.approx(3 * (without.pairs[0].p or 0))


def test_an_unavailable_backend_is_a_row_with_its_reason(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, unavailable={"nccl": "no CUDA device on h1, h2"})))
    row = row_of(summary, "nccl")
    assert (row.status, row.reason, row.launches.attempted) == ("unavailable", "no CUDA device on h1, h2", 0)
    assert len(summary.pairs) == 1  # what could not run was known before the first launch


def test_a_failed_gate_makes_exactly_that_row_invalid_and_unranked(tmp_path: Path) -> None:
    arms = {**TWO_ARMS, "mpi": dataclasses.replace(TWO_ARMS["mpi"], gate="fail", losses_shift=0.5)}
    summary = summarise(write_run(tmp_path, Truth(arms)))
    row = row_of(summary, "mpi")
    assert row.status == "invalid"
    assert row.reason is not None
    assert "error 812 times the bound" in row.reason
    assert row.equivalence.status == "fail"
    assert row.step_seconds is not None  # shown ...
    assert row.ratio_to_fastest is None  # ... and not ranked
    other = row_of(summary, "gloo")
    assert (other.status, other.equivalence.status) == ("ok", "pass")
    assert summary.pairs == ()


def test_one_failed_gate_of_one_rank_in_one_launch_is_enough(tmp_path: Path) -> None:
    def corrupt(record: RankRecord) -> RankRecord:
        if (record.arm, record.block, record.rank) == ("gloo", 5, 2):
            return dataclasses.replace(record, equivalence=Equivalence("fail", "hash differs at step 3"))
        return record

    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS), change=corrupt))
    row = row_of(summary, "gloo")
    assert row.status == "invalid"
    assert row.reason is not None
    assert "rank 2 on h3" in row.reason
    assert "hash differs at step 3" in row.reason
    assert row_of(summary, "mpi").status == "ok"


def test_losses_that_disagree_with_the_majority_make_one_row_invalid(tmp_path: Path) -> None:
    arms = {**THREE, "mpi": dataclasses.replace(THREE["mpi"], losses_shift=3e-5)}
    summary = summarise(write_run(tmp_path, Truth(arms)))
    assert {row.arm: row.status for row in summary.rows} == {"gloo": "ok", "mpi": "invalid", "gloo-b": "ok"}
    reason = row_of(summary, "mpi").reason
    assert reason is not None
    assert "relative 3.0e-05 > 1e-05" in reason


def test_with_two_backends_a_disagreement_names_both(tmp_path: Path) -> None:
    arms = {**TWO_ARMS, "mpi": dataclasses.replace(TWO_ARMS["mpi"], losses_shift=3e-5)}
    summary = summarise(write_run(tmp_path, Truth(arms)))
    assert [row.status for row in summary.rows] == ["invalid", "invalid"]
    assert all("no majority" in (row.reason or "") for row in summary.rows)


def test_an_arm_with_fewer_losses_has_not_shown_the_same(tmp_path: Path) -> None:
    def shorter(record: RankRecord) -> RankRecord:
        gate = record.equivalence
        return (
            dataclasses.replace(record, equivalence=dataclasses.replace(gate, losses=gate.losses[:-1]))
            if (record.arm == "mpi")
            else record
        )

    summary = summarise(write_run(tmp_path, Truth(THREE), change=shorter))
    assert {row.arm: row.status for row in summary.rows} == {"gloo": "ok", "mpi": "invalid", "gloo-b": "ok"}
    assert "a loss is there for one of the two only" in (row_of(summary, "mpi").reason or "")


def test_losses_within_the_tolerance_pass(tmp_path: Path) -> None:
    arms = {**TWO_ARMS, "mpi": dataclasses.replace(TWO_ARMS["mpi"], losses_shift=0.9e-5)}
    assert all(row.status == "ok" for row in summarise(write_run(tmp_path, Truth(arms))).rows)


def test_a_quick_run_gives_no_interval_and_no_verdict(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, blocks=3, plan="quick")))
    row = row_of(summary, "mpi")
    assert row.step_seconds is not None
    assert row.step_seconds.ci is None
    assert row.ratio_to_fastest is not None
    assert row.ratio_to_fastest.ci is None
    assert row.ratio_to_fastest.verdict == "unresolved"
    assert row.ratio_to_fastest.estimate == pytest.approx(0.0967 / 0.0418, rel=0.01)
    assert summary.pairs[0].p is None


def test_arms_that_differ_in_a_field_that_counts_are_not_ranked_and_the_field_is_named(tmp_path: Path) -> None:
    truth = Truth(TWO_ARMS, arm_environment={"mpi": {"threads": 4}})
    summary = summarise(write_run(tmp_path, truth))
    row = row_of(summary, "mpi")
    assert row.status == "ok"
    assert row.step_seconds is not None
    assert row.ratio_to_fastest is None
    assert any("threads (1 against 4" in warning or "threads (4 against 1" in warning for warning in row.warnings)
    (pair,) = summary.pairs
    assert (pair.verdict, pair.ratio) == ("not comparable", None)


def test_a_difference_that_only_warns_is_said_and_ranked(tmp_path: Path) -> None:
    truth = Truth(TWO_ARMS, arm_environment={"mpi": {"kernel": "6.2.0"}})
    summary = summarise(write_run(tmp_path, truth))
    assert row_of(summary, "mpi").ratio_to_fastest is not None
    assert any("kernel" in warning for warning in row_of(summary, "mpi").warnings)


def test_a_fact_that_only_one_arm_knows_is_a_warning(tmp_path: Path) -> None:
    truth = Truth(TWO_ARMS, arm_environment={"mpi": {"threads": None}})
    summary = summarise(write_run(tmp_path, truth))
    assert row_of(summary, "mpi").ratio_to_fastest is not None
    assert any("Unknown is not equal" in warning for warning in row_of(summary, "mpi").warnings)


def test_the_twin_gives_a_resolution_floor_and_takes_no_part(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, plan="thorough", aa=True)))
    floor = summary.resolution_floor["linear/4"]
    assert 0 < floor < math.log(1.01)
    assert [(pair.a, pair.b) for pair in summary.pairs] == [("gloo", "mpi")]
    twin = row_of(summary, "aa")
    assert (twin.status, twin.ratio_to_fastest, twin.backend) == ("ok", None, "gloo")


def test_ranks_of_simulated_hosts_that_share_a_machine_are_oversubscribed(tmp_path: Path) -> None:
    truth = Truth(TWO_ARMS, environment={"boot_id": "one", "cpu_count": 2})
    summary = summarise(write_run(tmp_path, truth))
    assert any("4 ranks on 2 cores" in w and "oversubscribed" in w for w in row_of(summary, "gloo").warnings)
    assert any("Hosts h1, h2, h3, h4 are one machine" in warning for warning in summary.warnings)


def test_distinct_machines_with_enough_cores_give_no_such_warning(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS)))
    assert summary.warnings == ()
    assert row_of(summary, "gloo").warnings == ()


def test_free_running_steps_that_differ_by_more_than_two_percent_are_said(tmp_path: Path) -> None:
    def slower(record: RankRecord) -> RankRecord:
        return dataclasses.replace(record, free_running=(FreeRun(20, round(20 * 0.0418 * 1.05e9)),))

    summary = summarise(write_run(tmp_path, dataclasses.replace(QUIET, arms={"gloo": TWO_ARMS["gloo"]}), change=slower))
    row = row_of(summary, "gloo")
    assert row.free_running_seconds == pytest.approx(0.0418 * 1.05, rel=1e-6)
    assert any("5.0% more than synchronised" in warning for warning in row.warnings)


def test_a_busbw_above_the_link_is_flagged(tmp_path: Path) -> None:
    fast = {"gloo": dataclasses.replace(TWO_ARMS["gloo"], beta=200e6)}
    summary = summarise(write_run(tmp_path, Truth(fast, sweep=True)))
    row = row_of(summary, "gloo")
    assert row.link_fraction is not None
    assert row.link_fraction > 1.05
    assert any("of the measured link" in warning for warning in row.warnings)
    assert any("faster than the measured link allows" in warning for warning in summary.warnings)


def test_the_link_is_the_slowest_senders_and_busbw_is_held_against_it(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, sweep=True, link=125e6)))
    assert {link.backend for link in summary.links} == {"gloo", "mpi"}
    assert all(link.bytes_per_second == pytest.approx(125e6, rel=1e-6) for link in summary.links)
    largest = max(
        (r for r in summary.collectives if (r.arm, r.collective) == ("gloo", "all_reduce")), key=lambda r: r.bytes
    )
    assert largest.busbw == pytest.approx(110e6, rel=0.02)
    assert largest.link_fraction == pytest.approx(0.88, rel=0.02)
    assert largest.algbw == pytest.approx(110e6 / 1.5, rel=0.02)


def test_alpha_and_beta_come_back_from_a_sweep(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, sweep=True)))
    model = next(m for m in summary.models if (m.arm, m.collective) == ("gloo", "all_reduce"))
    assert model.alpha == pytest.approx(1e-4, rel=0.02)
    assert model.beta == pytest.approx(110e6 / 1.5, rel=0.02)


def test_a_collective_that_a_backend_lacks_is_unavailable_with_its_reason(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, sweep=True)))
    result = next(r for r in summary.collectives if r.collective == "reduce_scatter")
    assert (result.arm, result.status, result.reason) == ("mpi", "unavailable", "mpi has no reduce_scatter")


def test_wrong_values_make_a_collective_and_its_row_invalid(tmp_path: Path) -> None:
    def corrupt(record: RankRecord) -> RankRecord:
        if record.kind != "collectives" or record.arm != "mpi" or record.rank != 1:
            return record
        first = dataclasses.replace(record.collectives[0], wrong=3)
        return dataclasses.replace(record, collectives=(first, *record.collectives[1:]))

    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS, sweep=True), change=corrupt))
    bad = [r for r in summary.collectives if r.wrong]
    assert {(r.arm, r.status, r.wrong) for r in bad} == {("mpi", "invalid", 18)}  # 3 in each of six launches
    assert row_of(summary, "mpi", workload="collectives").status == "invalid"
    assert not [r for r in summary.rows if (r.workload, r.arm) == ("collectives", "gloo")]


def test_an_interrupted_run_is_summarised_as_far_as_it_got(tmp_path: Path) -> None:
    run = write_run(tmp_path, Truth(TWO_ARMS))
    edit_manifest(run, launches=load_run(run).manifest.launches[:1], stop_reason="interrupted")
    summary = summarise(run)
    assert summary.stop_reason == "interrupted"
    assert row_of(summary, "gloo").launches.valid == 1
    row = row_of(summary, "mpi")
    assert row.status == "failed"
    assert row.reason is not None
    assert "no launch was made" in row.reason


def test_facts_are_said_once_where_hosts_agree_and_per_host_where_they_differ(tmp_path: Path) -> None:
    facts = summarise(write_run(tmp_path, Truth(TWO_ARMS))).environment
    assert facts["threads"] == 1
    assert facts["boot_id"] == {"per host": {f"h{i}": f"machine-h{i}" for i in range(1, 5)}}


def test_the_interval_covers_the_truth_about_as_often_as_it_says(tmp_path: Path) -> None:
    """The pipeline, not the statistics: 40 runs through real files; the statistics have their own simulation."""
    true = TWO_ARMS["mpi"].step / TWO_ARMS["gloo"].step
    covered = []
    for seed in range(40):
        truth = Truth(TWO_ARMS, seed=seed, steps=20, single=None, launch_effect=0.01, worlds=(2,))
        ratio = row_of(summarise(write_run(tmp_path / str(seed), truth)), "mpi", 2).ratio_to_fastest
        assert ratio is not None
        assert ratio.ci is not None
        covered.append(ratio.ci[0] <= true <= ratio.ci[1])
    assert np.mean(covered) >= 0.85


def test_the_same_records_give_the_same_summary_byte_for_byte(tmp_path: Path) -> None:
    run = write_run(tmp_path, Truth(TWO_ARMS, sweep=True))
    assert codec.encode(summarise(run)) == codec.encode(summarise(run))


def test_a_rows_transport_is_told_once_whatever_the_ranks_addresses(tmp_path: Path) -> None:
    def on_its_own_address(record: RankRecord) -> RankRecord:
        return dataclasses.replace(record, transport=f"gloo: TCP on eth0 (198.18.0.1{record.rank})")

    run = write_run(tmp_path, Truth(arms=TWO_ARMS), change=on_its_own_address)
    assert {row.transport for row in summarise(run).rows if row.status == "ok"} == {"gloo: TCP on eth0"}


def test_ranks_of_one_host_have_no_link_to_be_measured_against(tmp_path: Path) -> None:
    def on_one_host(record: RankRecord) -> RankRecord:
        return dataclasses.replace(record, host="local")

    found = summarise(write_run(tmp_path, Truth(arms=TWO_ARMS), change=on_one_host))
    assert found.links == ()
    assert all(row.link_fraction is None for row in found.rows)


@pytest.mark.parametrize(
    "version",
    [
        lambda record: "2.6.0" if record.block < 4 else "2.7.0",  # changed between two sittings of one run
        lambda record: ("2.6.0", "2.7.0")[(record.block + (record.arm == "mpi")) % 2],  # never equal in a block
    ],
)
def test_launches_that_were_not_measured_under_one_condition_are_not_ranked(
    tmp_path: Path, version: Callable[[RankRecord], str]
) -> None:
    def change(record: RankRecord) -> RankRecord:
        return dataclasses.replace(record, environment={**record.environment, "torch_version": version(record)})

    summary = summarise(write_run(tmp_path, Truth(TWO_ARMS), change=change))
    assert [(p.a, p.b, p.verdict, p.ratio) for p in summary.pairs] == [("gloo", "mpi", "not comparable", None)]
    row = next(row for row in summary.rows if row.arm == "mpi")
    assert row.ratio_to_fastest is None
    assert 'torch_version ("2.6.0" or "2.7.0" against "2.6.0" or "2.7.0" on h1, rank 0)' in row.warnings[-1]


def test_buffers_that_are_broadcast_are_said_beside_exposed_communication(tmp_path: Path) -> None:
    run = write_run(tmp_path, Truth(TWO_ARMS))
    assert not any("broadcast_buffers" in text for row in summarise(run).rows for text in row.warnings)
    plan = json.loads(run.plan.read_bytes())
    plan["arms"][1]["ddp"]["broadcast_buffers"] = True
    run.plan.write_text(json.dumps(plan))
    said = {
        row.arm: [text for text in row.warnings if text.startswith("broadcast_buffers is on")]
        for row in summarise(run).rows
    }
    assert [(arm, len(texts)) for arm, texts in said.items()] == [("gloo", 0), ("mpi", 1)]


NCCL_AND_MPI = {
    "nccl": ArmTruth(0.0418, 0.036, backend="nccl"),
    "mpi": ArmTruth(0.0967, 0.036, backend="mpi"),
}


def with_pilots(run: RunPaths, told: Mapping[str, str], warning: str = "") -> RunPaths:
    """The run with one pilot of each arm: a copy of its first launch that tells ``told``."""
    manifest = codec.read(run.manifest, Manifest)
    outcomes = list(manifest.launches)
    for arm, text in told.items():
        source = next(o for o in manifest.launches if (o.arm, o.kind) == (arm, "train"))
        name, digests = f"pilot-{arm}", {}
        for rank in range(source.world_size):
            record = dataclasses.replace(
                codec.read(run.rank(source.launch, rank), RankRecord), launch=name, kind="pilot", block=-1,
                transport=text.format(rank=rank), warnings=(warning,) if warning else (),
            )  # fmt: skip
            data = codec.encode(record)
            paths.write_new(run.rank(name, rank), data)
            digests[run.rank(name, rank).name] = hashlib.sha256(data).hexdigest()
        outcomes.append(
            dataclasses.replace(
                source, launch=name, index=len(outcomes) + 1, kind="pilot", block=-1, digests=digests
            )
        )  # fmt: skip
    edit_manifest(run, launches=tuple(outcomes))
    return run


def test_a_rows_transport_is_what_its_pilot_was_told_by_the_library(tmp_path: Path) -> None:
    silent = {"nccl": "nccl: not told", "mpi": "mpi: TCP on eth0 (198.18.0.11)"}

    def untold(record: RankRecord) -> RankRecord:
        return dataclasses.replace(record, transport=silent.get(record.backend, "unknown"))

    run = write_run(tmp_path, Truth(arms=NCCL_AND_MPI), change=untold)
    assert row_of(summarise(run), "nccl", 4).transport == "nccl: not told"
    with_pilots(
        run,
        {
            "nccl": "nccl: via NET/Socket, NET/Socket [0]eth0:198.18.0.1{rank}<0>",
            "mpi": "mpi: pml ob1, btl tcp, TCP on eth0 (198.18.0.1{rank})",
        },
    )
    found = summarise(run)
    assert row_of(found, "nccl", 4).transport == "nccl: via NET/Socket, NET/Socket [0]eth0"
    assert row_of(found, "mpi", 4).transport == "mpi: pml ob1, btl tcp, TCP on eth0"


def test_a_timed_launch_that_went_another_way_than_its_pilot_is_told_beside_it(tmp_path: Path) -> None:
    def another(record: RankRecord) -> RankRecord:
        return dataclasses.replace(record, transport="mpi: TCP on eth7 (198.18.0.11)")

    run = with_pilots(write_run(tmp_path, Truth(arms=NCCL_AND_MPI), change=another), {"mpi": "mpi: pml ob1"})
    assert row_of(summarise(run), "mpi", 4).transport == "mpi: TCP on eth7; mpi: pml ob1"


def test_a_silent_fall_back_that_a_pilot_saw_is_a_warning_on_the_row_and_only_there(tmp_path: Path) -> None:
    text = "NCCL uses sockets although 1 InfiniBand or RoCE port(s) are up: a silent fall-back."
    run = with_pilots(write_run(tmp_path, Truth(arms=NCCL_AND_MPI)), {"nccl": "nccl: via NET/Socket"}, text)
    found = summarise(run)
    assert [w for w in row_of(found, "nccl", 4).warnings if "fall-back" in w] == [
        f"{text} (4 records; first pilot-nccl, rank 0 on h1)"
    ]
    assert not [w for w in (*row_of(found, "mpi", 4).warnings, *found.warnings) if "fall-back" in w]


def test_a_contaminated_measurement_is_a_warning_on_its_row(tmp_path: Path) -> None:
    text = "Contaminated: another process used the GPU while it was measured."

    def contaminated(record: RankRecord) -> RankRecord:
        return dataclasses.replace(record, warnings=(text,)) if (record.arm, record.block) == ("mpi", 2) else record

    found = summarise(write_run(tmp_path, Truth(arms=NCCL_AND_MPI), change=contaminated))
    assert any(w.startswith(text) for w in row_of(found, "mpi", 4).warnings)
    assert not [w for w in (*row_of(found, "nccl", 4).warnings, *found.warnings) if w.startswith("Contaminated")]
