"""The compose service for one machine with GPUs, as compose itself reads it. To run it needs a GPU: not run here."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from suite.paths import project_root


def services(**environment: str) -> dict[str, Any]:
    """The services as `docker compose config` resolves them; no engine is asked."""
    done = subprocess.run(
        ["docker", "compose", "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=project_root(),
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


pytestmark = pytest.mark.containers


def test_the_gpu_service_differs_from_the_cpu_one_only_where_gpus_need_it() -> None:
    known = services()
    cpu, gpu = known["suite-local"], known["suite-local-gpu"]
    own = {"image", "build", "pull_policy", "command", "hostname", "extra_hosts", "shm_size", "ulimits", "deploy"}
    for key in (set(cpu) | set(gpu)) - own:
        assert cpu[key] == gpu[key], key
    assert gpu["cap_drop"] == ["ALL"]
    assert gpu["network_mode"] == "none"
    assert gpu["read_only"] is True


def test_the_gpu_service_gets_every_gpu_and_may_lock_memory() -> None:
    gpu = services()["suite-local-gpu"]
    (request,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert request == {"driver": "nvidia", "count": -1, "capabilities": ["gpu", "compute", "utility"]}
    assert gpu["ulimits"]["memlock"] in (-1, {"soft": -1, "hard": -1})


def test_a_run_never_begins_the_hours_of_building_its_image() -> None:
    gpu = services()["suite-local-gpu"]
    assert gpu["image"] == "ddp-backend-suite:cuda"
    assert gpu["pull_policy"] == "never"
    assert "build" not in gpu


@pytest.mark.parametrize(("environment", "world"), [({}, "1"), ({"SUITE_GPUS": "4"}, "4")])
def test_there_is_one_rank_per_gpu(environment: dict[str, str], world: str) -> None:
    command = services(**environment)["suite-local-gpu"]["command"]
    assert command[0] == "local"
    assert command[command.index("--world") + 1] == world
    assert command[command.index("--device") + 1] == "cuda"
