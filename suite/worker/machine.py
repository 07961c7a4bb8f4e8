"""Facts about the machine, read from where Linux shows them; None for what it does not show.

Names are those of ``suite.policy``. Nothing here raises: a machine that hides a fact is still a machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import socket
import struct
from pathlib import Path
from typing import Any

_SIOCGIFADDR = 0x8915
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 says "no limit" by a number near 2⁶³


def read_text(path: str) -> str | None:
    """A small file's text without the final newline; None when it cannot be read, or is empty."""
    try:
        return Path(path).read_text(errors="replace").strip() or None
    except OSError:
        return None


def read_int(path: str) -> int | None:
    """A file that holds one integer."""
    text = read_text(path)
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def machine_facts() -> dict[str, Any]:
    """What does not change while the machine runs."""
    cpuinfo = read_text("/proc/cpuinfo") or ""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return {
        "hostname": socket.gethostname(),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "cpu_model": model.group(1) if model else platform.machine(),
        "cpu_count": os.cpu_count(),
        "cpu_quota": _cpu_quota(),
        "cpu_governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "smt": read_text("/sys/devices/system/cpu/smt/control"),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "virtualised": "hypervisor" in cpuinfo if cpuinfo else None,
        "memory_bytes": _meminfo("MemTotal"),
        "memory_limit_bytes": _memory_limit(),
        "shm_bytes": _filesystem_bytes("/dev/shm"),  # noqa: S108  # its size, nothing is written
        "operating_system": _operating_system(),
        "kernel": platform.release(),
        "clocksource": read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "yama_ptrace_scope": read_int("/proc/sys/kernel/yama/ptrace_scope"),
        "affinity": cpu_list(os.sched_getaffinity(0)),
        "infiniband_ports_up": infiniband_ports_up(),
    }


def momentary_facts(when: str) -> dict[str, Any]:
    """What changes: load, clock, temperature; ``when`` is "before" or "after"."""
    facts: dict[str, Any] = {
        f"load_{when}": os.getloadavg()[0],
        f"cpu_mhz_{when}": _cpu_mhz(),
        f"temperature_{when}": _temperature(),
    }
    if when == "before":
        facts["memory_available_before_bytes"] = _meminfo("MemAvailable")
    return facts


def interface_facts(name: str | None) -> dict[str, Any]:
    """What is known of a network interface."""
    base = f"/sys/class/net/{name}"
    known = name is not None and Path(base).exists()
    speed = read_int(f"{base}/speed") if known else None
    driver = Path(base, "device/driver")
    return {
        "interface": name,
        "interface_address": interface_address(name) if known and name else None,
        "interface_mtu": read_int(f"{base}/mtu") if known else None,
        "interface_speed_bits_per_second": speed * 1_000_000 if speed and speed > 0 else None,
        "interface_driver": driver.resolve().name if known and driver.exists() else None,
    }


def interface_address(name: str) -> str | None:
    """The interface's first IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None


def interface_of(address: str) -> str | None:
    """The interface that has an address, IPv4 or IPv6."""
    if address.startswith("127."):
        return "lo"
    if ":" in address:
        return _interface_of_ipv6(address)
    for _, name in socket.if_nameindex():
        if interface_address(name) == address:
            return name
    return None


def _interface_of_ipv6(address: str) -> str | None:
    # One line an address: 32 hexadecimal digits, number of the interface, prefix length, scope, flags, name.
    digits = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    for line in (read_text("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if words[0] == digits:
            return words[-1]
    return None


def infiniband_ports_up() -> int:
    """InfiniBand or RoCE ports that the kernel calls active."""
    states = Path("/sys/class/infiniband").glob("*/ports/*/state")
    return sum("ACTIVE" in (read_text(str(state)) or "") for state in states)


def cpu_list(cpus: set[int]) -> str:
    """CPU numbers as the kernel writes them: ``{0, 1, 2, 5}`` is "0-2,5"."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _cpu_quota() -> float | None:
    text = read_text("/sys/fs/cgroup/cpu.max")
    if text:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    first = read_int("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    second = read_int("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return first / second if first and second and first > 0 else None


def _memory_limit() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = read_int(path)
        if limit is not None and limit < _NO_LIMIT_BYTES:
            return limit
    return None


def _meminfo(name: str) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+) kB$", read_text("/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _filesystem_bytes(path: str) -> int | None:
    with contextlib.suppress(OSError):
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize
    return None


def _operating_system() -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text("/etc/os-release") or "", re.MULTILINE)
    return match.group(1) if match else None


def _cpu_mhz() -> float | None:
    clocks = re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    return sum(map(float, clocks)) / len(clocks) if clocks else None


def _temperature() -> float | None:
    zones = Path("/sys/class/thermal").glob("thermal_zone*/temp")
    found = [value for zone in zones if (value := read_int(str(zone))) is not None]
    return max(found) / 1000 if found else None
