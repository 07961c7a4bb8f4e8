"""What NVIDIA's management library says of a GPU: facts, and samples taken while it works.

Asked through nvidia-ml-py where it is installed, else through ``nvidia-smi``, which every driver brings. Samples
come from a process of its own (``python -m suite.worker.nvml UUID``), so that nothing of it runs in the measured
one. Neither this module nor that process imports torch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from suite.policy import CONTAMINATED, GPU_IDLE_BYTES

SAMPLE_SECONDS = 0.1
PROGRAM_SECONDS = 0.5  # between two starts of nvidia-smi, each of which is work for the host and its driver
BUSY_PERCENT = 50
CLOCK_DROP = 0.03  # a busy GPU whose clock falls further is not measured under one condition
QUERY_SECONDS = 15
Reading = dict[str, Any]

# What is asked for: name here, nvidia-smi's name, and how its text becomes a value.
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "uuid": ("uuid", str),
    "model": ("name", str),
    "driver": ("driver_version", str),
    "memory_bytes": ("memory.total", lambda text: int(float(text) * 1024 * 1024)),
    "power_limit_watts": ("power.limit", float),
    "persistence": ("persistence_mode", lambda text: text == "Enabled"),
    "clock_max_mhz": ("clocks.max.sm", int),
    "clock_mhz": ("clocks.sm", int),
    "temperature": ("temperature.gpu", int),
    "power_watts": ("power.draw", float),
    "utilisation": ("utilization.gpu", int),
    "throttle": ("clocks_throttle_reasons.active", lambda text: int(text, 16)),
    "memory_used_bytes": ("memory.used", lambda text: int(float(text) * 1024 * 1024)),
}
# Bits of the mask of reasons for lowered clocks; idle (1) and the application's own setting (2) are no trouble.
_THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}


def query(uuid: str | None) -> Reading:
    """Everything about one GPU (None: the first); an empty dict where nothing can be asked."""
    return _asked(_query_library, uuid) or _asked(_query_program, uuid)


def _asked(source: Callable[[str | None], Reading], uuid: str | None) -> Reading:
    with contextlib.suppress(Exception):  # a driver can refuse any of these in its own way
        return source(uuid)
    return {}


def _query_library(uuid: str | None) -> Reading:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0)

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, f"nvmlDeviceGet{name}")(handle, *arguments)
        except (nvml.NVMLError, AttributeError):  # the driver, or the library, does not know it
            return None

    # Only the second version leaves out what the driver keeps for itself, which is there on an idle GPU too.
    version = getattr(nvml, "nvmlMemory_v2", None)
    used = ask("MemoryInfo", version) if version else None
    memory, limit, power = ask("MemoryInfo"), ask("EnforcedPowerLimit"), ask("PowerUsage")
    utilisation, processes = ask("UtilizationRates"), ask("ComputeRunningProcesses")
    return {
        "uuid": _text(ask("UUID")),
        "model": _text(ask("Name")),
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "memory_bytes": memory.total if memory else None,
        "power_limit_watts": limit / 1000 if limit is not None else None,
        "persistence": bool(mode) if (mode := ask("PersistenceMode")) is not None else None,
        "clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "clock_mhz": ask("ClockInfo", nvml.NVML_CLOCK_SM),
        "temperature": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "power_watts": power / 1000 if power is not None else None,
        "utilisation": utilisation.gpu if utilisation else None,
        "throttle": ask("CurrentClocksThrottleReasons"),
        "memory_used_bytes": used.used if used else None,
        "processes": len(processes) if processes is not None else None,
    }


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _query_program(uuid: str | None) -> Reading:
    select = [f"--id={uuid}"] if uuid else ["--id=0"]
    names = ",".join(name for name, _ in _FIELDS.values())
    reading = parse_line(_nvidia_smi(*select, f"--query-gpu={names}", "--format=csv,noheader,nounits"))
    if reading:
        apps = _nvidia_smi(*select, "--query-compute-apps=pid", "--format=csv,noheader")
        reading["processes"] = len(apps.split())
    return reading


def _nvidia_smi(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    words = [program, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    return done.stdout if done.returncode == 0 else ""


def parse_line(line: str) -> Reading:
    """nvidia-smi's CSV line for ``_FIELDS``; a field it does not support ("[N/A]", "N/A") is None."""
    words = [word.strip() for word in line.strip().split(",")]
    if len(words) != len(_FIELDS):
        return {}
    reading: Reading = {}
    for (name, (_, convert)), word in zip(_FIELDS.items(), words, strict=True):
        try:
            reading[name] = None if "N/A" in word or "Not Supported" in word else convert(word)
        except ValueError:
            reading[name] = None
    return reading


def throttle_reasons(mask: int | None) -> tuple[str, ...]:
    """The mask's reasons in words."""
    return tuple(name for bit, name in _THROTTLE.items() if (mask or 0) & bit)


def named_uuid(index: int) -> str | None:
    """The UUID by which ``CUDA_VISIBLE_DEVICES`` names a visible device; None when it does not."""
    name = _visible_name(index)
    return name if name and name.startswith(("GPU-", "MIG-")) else None


def _visible_name(index: int) -> str | None:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(index + 1)]
    return names[index].strip() if index < len(names) else None


def listed_uuid(index: int) -> str | None:
    """The UUID of a visible device that is named by number; numbers follow the PCI bus, as the launch sets it."""
    name = _visible_name(index) or ""
    listed = [line.strip() for line in _nvidia_smi("--query-gpu=uuid", "--format=csv,noheader").splitlines()]
    return listed[int(name)] if name.isdigit() and int(name) < len(listed) else None


def memory_in_use(index: int) -> int | None:
    """Bytes in use on a visible device, without what the driver keeps for itself; None where nobody tells.

    Ask before CUDA is used: then they are not this process's own.
    """
    uuid = named_uuid(index) or listed_uuid(index)
    used = query(uuid).get("memory_used_bytes") if uuid else None
    return used if isinstance(used, int) else None


def held_by_others(memory_before_bytes: int | None) -> str | None:
    """A warning where a GPU had memory in use before the rank used it; None where it had not, or nobody tells.

    The second sign of a foreign process, after the list of processes: a driver need not show a container those
    outside it, but counts their memory.
    """
    if memory_before_bytes is None or memory_before_bytes <= GPU_IDLE_BYTES:
        return None
    return (
        f"{CONTAMINATED} more than {GPU_IDLE_BYTES >> 20} MiB of the GPU's memory were in use before this rank used "
        "it: something else has it open, and may have used it while it was measured. End that, and measure again."
    )


def static_facts(reading: Reading) -> dict[str, Any]:
    """The facts of ``suite.policy`` that do not change."""
    wanted = ("uuid", "model", "driver", "memory_bytes", "power_limit_watts", "persistence", "clock_max_mhz")
    facts = {f"gpu_{name}": reading.get(name) for name in wanted}
    facts["gpu_topology"] = (_nvidia_smi("topo", "-m").strip() or None) if reading else None
    return facts


def momentary_facts(reading: Reading, when: str) -> dict[str, Any]:
    """Clock, temperature and power; ``when`` is "before" or "after"."""
    return {f"gpu_{name}_{when}": reading.get(name) for name in ("clock_mhz", "temperature", "power_watts")}


class Sampler:
    """Samples one GPU from a process of its own until it is stopped.

    Args:
        uuid: the GPU; None: no GPU, nothing is sampled.
    """

    def __init__(self, uuid: str | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if uuid:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe that nobody reads is soon full
            words = [sys.executable, "-m", "suite.worker.nvml", uuid]
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=self._output)

    def stop(self) -> list[Reading]:
        """End the process; returns its readings."""
        if self._process is None:
            return []
        try:
            self._process.communicate(timeout=QUERY_SECONDS)  # closing its input ends it
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        readings = []
        with self._output as output:
            output.seek(0)
            lines = output.read().splitlines()
        for line in lines:
            with contextlib.suppress(ValueError):
                readings.append(json.loads(line))
        return readings


def summarise(
    readings: list[Reading],
    ranks_on_gpu: int,
    span: tuple[float, float] = (-math.inf, math.inf),
    *,
    on_gpu: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Facts of the samples taken while the GPU was busy, and warnings about what contaminates a measurement.

    Args:
        readings: of the whole launch.
        ranks_on_gpu: how many processes of the launch use the GPU. Where not even these are seen, whether there are
            others is unknown.
        span: the steps, by ``time.perf_counter``. Around them the GPU does other work, under which it clocks otherwise.
        on_gpu: whether the launch uses one, so that samples are missed where there are none.
    """
    during = [r for r in readings if span[0] <= r.get("at", span[0]) <= span[1]]
    busy = [r for r in during if (r.get("utilisation") or 0) >= BUSY_PERCENT]
    clocks = [r["clock_mhz"] for r in busy if r.get("clock_mhz")]
    powers = [r["power_watts"] for r in busy if r.get("power_watts") is not None]
    heat = [r["temperature"] for r in busy if r.get("temperature") is not None]
    reasons = sorted({reason for r in busy for reason in throttle_reasons(r.get("throttle"))})
    counts = [r["processes"] for r in readings if r.get("processes") is not None]
    most = max(counts, default=0)
    others = most > ranks_on_gpu if most >= ranks_on_gpu else None
    facts = {
        "gpu_samples": len(readings),
        "gpu_busy_samples": len(busy),
        "gpu_clock_mhz_during": statistics.median(clocks) if clocks else None,
        "gpu_clock_mhz_lowest": min(clocks, default=None),
        "gpu_power_watts_during": statistics.median(powers) if powers else None,
        "gpu_temperature_during": max(heat, default=None),
        "gpu_throttle_reasons": ", ".join(reasons) if busy else None,
        "gpu_other_processes": others,
    }
    warnings = []
    if on_gpu and busy and not clocks:
        warnings.append("The GPU's clock under the steps is unknown: its driver does not tell it.")
    if on_gpu and span[0] < span[1] and not busy:
        warnings.append(
            "The GPU's clock and throttling under the steps are unknown: no sample was taken while it was at least "
            f"{BUSY_PERCENT}% busy. Longer launches (--steps) or a larger workload have some."
        )
    if others:
        warnings.append(f"{CONTAMINATED} another process used the GPU while it was measured.")
    high, low = _largest_fall(clocks)
    if low < (1 - CLOCK_DROP) * high:
        why = f" ({', '.join(reasons)})" if reasons else ""
        warnings.append(f"{CONTAMINATED} the GPU's clock fell from {high} to {low} MHz while it was busy{why}.")
    return facts, warnings


def _largest_fall(clocks: list[int]) -> tuple[int, int]:
    """The highest clock, and a later one that lies furthest below it in proportion; one that rises has not fallen."""
    high, worst = 0, (0, 0)
    for clock in clocks:
        high = max(high, clock)
        if clock * worst[0] <= worst[1] * high:
            worst = (high, clock)
    return worst


def _sample_for_ever(uuid: str) -> None:
    """Print readings at a steady pace until standard input ends, which is when the rank stops or dies."""
    os.set_blocking(0, False)
    pause = SAMPLE_SECONDS if _asked(_query_library, uuid) else PROGRAM_SECONDS
    while True:
        at = time.perf_counter()  # on Linux one clock for all processes
        print(json.dumps({**query(uuid), "at": at}), flush=True)
        time.sleep(pause)
        with contextlib.suppress(BlockingIOError):
            if os.read(0, 1) == b"":
                return


if __name__ == "__main__":
    _sample_for_ever(sys.argv[1])
