"""NVML's facts without a GPU: a script stands in for nvidia-smi, a module with its names for nvidia-ml-py."""

from __future__ import annotations

import math
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from suite.worker import nvml
from tests.support.nvidia_ml_py import Library
from tests.worker.conftest import ROOT

LINE = (
    "GPU-11111111-2222-3333-4444-555555555555, NVIDIA GeForce RTX 3090, 520.61.05, 24576, 350.00, Enabled, 2100, "
    "1695, 61, 312.44, 98, 0x0000000000000004, 3"
)
SCRIPT = f"""#!{sys.executable}
import sys
words = " ".join(sys.argv[1:])
if "topo" in words:
    print("GPU0 X")
elif "compute-apps" in words:
    print("100\\n200")
elif words == "--query-gpu=uuid --format=csv,noheader":
    print("GPU-0\\nGPU-1")
else:
    print({LINE!r})
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SCRIPT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed


def test_a_line_of_nvidia_smi_becomes_a_reading_in_base_units() -> None:
    reading = nvml.parse_line(LINE)
    assert reading["model"] == "NVIDIA GeForce RTX 3090"
    assert reading["memory_bytes"] == 24576 * 1024 * 1024
    assert (reading["clock_mhz"], reading["clock_max_mhz"], reading["temperature"]) == (1695, 2100, 61)
    assert (reading["power_watts"], reading["power_limit_watts"]) == (312.44, 350.0)
    assert reading["persistence"] is True
    assert nvml.throttle_reasons(reading["throttle"]) == ("power cap",)
    assert reading["memory_used_bytes"] == 3 * 1024 * 1024


def test_what_a_driver_does_not_support_is_unknown() -> None:
    reading = nvml.parse_line(LINE.replace("312.44", "[N/A]").replace("Enabled", "[Not Supported]"))
    assert reading["power_watts"] is None
    assert reading["persistence"] is None
    assert nvml.parse_line("No devices were found") == {}


def test_idle_is_no_throttling() -> None:
    assert nvml.throttle_reasons(0x1) == ()
    assert nvml.throttle_reasons(0x48) == ("hardware slowdown", "hardware thermal")
    assert nvml.throttle_reasons(None) == ()


def test_without_a_gpu_every_fact_is_there_and_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.query(None) == {}
    facts = nvml.static_facts({})
    assert set(facts.values()) == {None}
    assert "gpu_driver" in facts


def test_nvidia_smi_is_asked_where_there_is_no_library(stand_in: None) -> None:
    reading = nvml.query("GPU-11111111-2222-3333-4444-555555555555")
    assert reading["driver"] == "520.61.05"
    assert reading["processes"] == 2
    assert nvml.static_facts(reading)["gpu_topology"] == "GPU0 X"


def test_a_device_number_becomes_a_uuid(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-abc")
    assert [nvml.named_uuid(index) for index in (0, 1, 2)] == [None, "GPU-abc", None]
    assert [nvml.listed_uuid(index) for index in (0, 2)] == ["GPU-1", None]


def reading(clock: int, *, busy: int = 99, processes: int = 1, throttle: int = 0) -> nvml.Reading:
    return {
        "clock_mhz": clock,
        "utilisation": busy,
        "processes": processes,
        "throttle": throttle,
        "power_watts": 300.0,
        "temperature": 60,
    }


def test_steady_clocks_and_one_process_are_no_warning() -> None:
    facts, warnings = nvml.summarise([reading(210, busy=0), reading(1700), reading(1695)], 1)
    assert warnings == []
    assert (facts["gpu_clock_mhz_during"], facts["gpu_clock_mhz_lowest"]) == (1697.5, 1695)
    assert facts["gpu_other_processes"] is False
    assert facts["gpu_samples"] == 3


def test_a_clock_that_falls_by_more_than_3_percent_contaminates() -> None:
    _, warnings = nvml.summarise([reading(1700), reading(1640, throttle=0x4)], 1)
    assert warnings == ["Contaminated: the GPU's clock fell from 1700 to 1640 MHz while it was busy (power cap)."]
    assert nvml.summarise([reading(1700), reading(1650)], 1)[1] == []


@pytest.mark.parametrize(
    ("clocks", "fall"),
    [
        ((210, 900, 1700, 1700), None),  # the clock rises as the work begins
        ((900, 1700, 1600, 1500, 1690), "1700 to 1500"),
        ((1700, 1600, 1950, 1860), "1700 to 1600"),  # the larger of two falls, in proportion
        ((1700,), None),
    ],
)
def test_only_a_clock_that_was_higher_before_has_fallen(clocks: tuple[int, ...], fall: str | None) -> None:
    warnings = nvml.summarise([reading(clock) for clock in clocks], 1)[1]
    assert warnings == ([f"Contaminated: the GPU's clock fell from {fall} MHz while it was busy."] if fall else [])


def test_a_foreign_process_contaminates() -> None:
    facts, warnings = nvml.summarise([reading(1700), reading(1700, processes=2)], 1)
    assert facts["gpu_other_processes"] is True
    assert warnings == ["Contaminated: another process used the GPU while it was measured."]
    assert nvml.summarise([reading(1700, processes=2)], 2)[1] == []


def test_whether_there_are_others_is_unknown_where_not_even_the_own_ranks_are_seen() -> None:
    hidden = [reading(1700, processes=0), reading(1700, processes=0)]
    facts, warnings = nvml.summarise(hidden, 1)
    assert facts["gpu_other_processes"] is None
    assert warnings == []
    assert nvml.summarise([reading(1700)], 2)[0]["gpu_other_processes"] is None


def test_only_the_clocks_under_the_steps_are_compared() -> None:
    gate, step, reduction = ({**reading(clock), "at": at} for clock, at in ((1950, 1.0), (1700, 2.0), (1980, 3.0)))
    facts, warnings = nvml.summarise([gate, step, reduction], 1, span=(1.5, 2.5))
    assert warnings == []
    assert facts["gpu_clock_mhz_during"] == facts["gpu_clock_mhz_lowest"] == 1700
    assert facts["gpu_samples"] == 3
    assert nvml.summarise([gate, step, reduction], 1)[1] != []
    assert nvml.summarise([gate], 1, span=(math.inf, -math.inf))[0]["gpu_clock_mhz_during"] is None


def test_no_samples_leave_every_fact_unknown() -> None:
    facts, warnings = nvml.summarise([], 1, on_gpu=False)
    assert warnings == []
    assert {name for name, value in facts.items() if value is not None} == {"gpu_samples", "gpu_busy_samples"}


@pytest.mark.parametrize("readings", [[], [reading(210, busy=3), reading(1700, busy=49)]])
def test_a_launch_on_a_gpu_without_a_sample_under_load_says_that_its_clock_is_unknown(
    readings: list[nvml.Reading],
) -> None:
    facts, warnings = nvml.summarise(readings, 1)
    assert (facts["gpu_samples"], facts["gpu_busy_samples"]) == (len(readings), 0)
    assert facts["gpu_clock_mhz_during"] is None
    assert warnings == [
        "The GPU's clock and throttling under the steps are unknown: no sample was taken while it was at least 50%"
        " busy. Longer launches (--steps) or a larger workload have some."
    ]
    assert nvml.summarise(readings, 1, (math.inf, -math.inf))[1] == []  # a launch without steps


def test_a_driver_that_tells_no_clock_is_not_taken_for_a_gpu_without_work() -> None:
    facts, warnings = nvml.summarise([{**reading(0), "clock_mhz": None}], 1)
    assert facts["gpu_busy_samples"] == 1
    assert warnings == ["The GPU's clock under the steps is unknown: its driver does not tell it."]


@pytest.mark.parametrize(("mebibytes", "held"), [(None, False), (0, False), (64, False), (65, True), (900, True)])
def test_memory_that_was_in_use_before_the_rank_used_the_gpu_contaminates(mebibytes: int | None, held: bool) -> None:
    text = nvml.held_by_others(None if mebibytes is None else mebibytes << 20)
    assert (text is not None) is held
    if text:
        assert text.startswith(
            "Contaminated: more than 64 MiB of the GPU's memory were in use before this rank used it"
        )


def test_the_memory_in_use_is_asked_for_without_cuda(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-abc")
    assert nvml.memory_in_use(0) == 3 << 20
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert nvml.memory_in_use(0) == 3 << 20
    monkeypatch.setenv("PATH", "/nonexistent")
    assert nvml.memory_in_use(0) is None


def test_the_library_is_asked_where_it_is_installed_and_gives_what_nvidia_smi_would(
    stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Library())
    by_library = nvml.query("GPU-abc")
    by_program = {**nvml.parse_line(LINE), "processes": 2}
    assert set(by_library) == set(by_program)
    own = {"uuid": "GPU-abc", "driver": "535.104.05", "memory_used_bytes": 5 << 20}
    assert by_library == {**by_program, **own}


def test_the_first_gpu_is_asked_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert nvml.query(None)["model"] == "NVIDIA GeForce RTX 3090"
    assert library.handle == 0


def test_what_a_driver_refuses_the_library_is_unknown_and_the_rest_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = ("MemoryInfo", "PowerUsage", "UtilizationRates", "ComputeRunningProcesses", "PersistenceMode")
    monkeypatch.setitem(sys.modules, "pynvml", Library(lacks))
    reading = nvml.query("GPU-abc")
    unknown = {name for name, value in reading.items() if value is None}
    assert unknown == {
        "memory_bytes", "memory_used_bytes", "power_watts", "utilisation", "processes", "persistence"
    }  # fmt: skip
    assert reading["clock_mhz"] == 1695


def test_memory_counted_with_the_drivers_own_is_not_taken_for_memory_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "nvmlMemory_v2", None)
    monkeypatch.setitem(sys.modules, "pynvml", Library())
    assert nvml.query("GPU-abc")["memory_used_bytes"] is None


def test_where_the_library_does_not_work_nvidia_smi_is_asked(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Library(("all",)))
    assert nvml.query("GPU-abc")["driver"] == "520.61.05"


def test_the_library_is_asked_ten_times_a_second_from_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text(
        "import sys\nfrom tests.support.nvidia_ml_py import Library\nsys.modules[__name__] = Library()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    sampler = nvml.Sampler("GPU-abc")
    time.sleep(4)
    readings = sampler.stop()
    pauses = sorted(after["at"] - before["at"] for before, after in pairwise(readings))
    assert nvml.SAMPLE_SECONDS <= pauses[len(pauses) // 2] < nvml.PROGRAM_SECONDS
    facts, warnings = nvml.summarise(readings, 2)
    assert facts["gpu_samples"] == facts["gpu_busy_samples"] == len(readings)
    assert warnings == []


def test_the_sampler_runs_beside_and_ends_with_its_owner(stand_in: None) -> None:
    sampler = nvml.Sampler("GPU-11111111-2222-3333-4444-555555555555")
    time.sleep(1.5)
    readings = sampler.stop()
    assert readings
    assert readings[0]["model"] == "NVIDIA GeForce RTX 3090"
    assert nvml.Sampler(None).stop() == []


def test_the_sampler_goes_on_when_it_has_said_more_than_a_pipe_holds(
    stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(program.read_text().replace("NVIDIA GeForce RTX 3090", "X" * 50_000))
    sampler = nvml.Sampler("GPU-11111111-2222-3333-4444-555555555555")
    time.sleep(3.5)
    readings = sampler.stop()
    assert len(readings) >= 3
    assert readings[-1]["at"] > readings[0]["at"] + 1
