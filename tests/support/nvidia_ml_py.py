"""A stand-in for nvidia-ml-py (the module pynvml); nothing but the standard library, for a process of its own too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


class Library(ModuleType):
    """Stands in for nvidia-ml-py: one GPU, and what ``lacks`` names is not supported by its driver."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 33554472

    class NVMLError(Exception):
        """The base of the library's errors."""

    def __init__(self, lacks: tuple[str, ...] = ()) -> None:
        super().__init__("pynvml")
        self.lacks = lacks
        self.handle: str | int = ""

    def nvmlInit(self) -> None:
        if "all" in self.lacks:
            raise self.NVMLError

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"535.104.05"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.handle = uuid
        return uuid

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.handle = index
        return index

    def __getattr__(self, name: str) -> Any:
        asked = name.removeprefix("nvmlDeviceGet")
        if asked == name:
            raise AttributeError(name)

        def answer(handle: str | int, *arguments: int) -> Any:
            assert handle == self.handle
            if asked in self.lacks:
                raise self.NVMLError(asked)
            answers: dict[str, Callable[..., Any]] = {
                "UUID": lambda: b"GPU-abc",
                "Name": lambda: "NVIDIA GeForce RTX 3090",
                "MemoryInfo": lambda *version: SimpleNamespace(
                    total=24 << 30, used=(5 << 20) if version == (self.nvmlMemory_v2,) else (330 << 20)
                ),
                "EnforcedPowerLimit": lambda: 350_000,
                "PowerUsage": lambda: 312_440,
                "UtilizationRates": lambda: SimpleNamespace(gpu=98, memory=40),
                "ComputeRunningProcesses": lambda: [object(), object()],
                "PersistenceMode": lambda: 1,
                "MaxClockInfo": lambda clock: 2100,
                "ClockInfo": lambda clock: 1695,
                "Temperature": lambda sensor: 61,
                "CurrentClocksThrottleReasons": lambda: 0x4,
            }
            return answers[asked](*arguments)

        return answer
