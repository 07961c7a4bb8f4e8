from __future__ import annotations

import pytest

from suite.policy import MASK, is_settable, looks_secret, mask


@pytest.mark.parametrize("name", ["NCCL_ALGO", "OMPI_MCA_pml", "OMP_NUM_THREADS", "UCX_TLS", "CUDA_VISIBLE_DEVICES"])
def test_what_is_recorded_may_be_set(name: str) -> None:
    assert is_settable(name)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "PYTHONPATH", "nccl_algo", "NCCL_A B", "NCCL_A\n", "", "OMP"])
def test_what_is_not_recorded_may_not_be_set(name: str) -> None:
    assert not is_settable(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMPI_AUTH_TOKEN", "abc"),
        ("TORCH_HUB_SECRET", "abc"),
        ("UCX_PASSWORD", "hunter2"),
        ("TORCH_X", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
        ("NCCL_TOPO_URL", "https://user:pass@example.org/t"),
    ],
)
def test_what_looks_secret_is_masked(name: str, value: str) -> None:
    assert looks_secret(name, value)
    assert mask(name, value) == MASK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (
            "CUDA_VISIBLE_DEVICES",
            "GPU-11111111-2222-3333-4444-555555555555,GPU-11111111-2222-3333-4444-555555555556",
        ),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("OMPI_MCA_mca_base_component_path", "/usr/lib/x86_64-linux-gnu/pmix2/lib/pmix"),
        ("OMPI_FILE_LOCATION", "/tmp/prterun.b0cc06705888.7.1000/1/0"),
        ("OMP_PLACES", "{0:4},{4:4}"),
    ],
)
def test_ordinary_values_are_kept(name: str, value: str) -> None:
    assert not looks_secret(name, value)
    assert mask(name, value) == value
