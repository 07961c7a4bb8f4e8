"""The worker container's options, against recorded texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from suite.cluster.containers import container_options, devices_inside, digest, labels
from suite.cluster.inventory import parse
from suite.paths import project_root

CLUSTER = parse(
    b"""
[defaults]
user = "bench"
[[hosts]]
name = "h1"
address = "198.18.0.11"
[[hosts]]
name = "h2"
address = "198.18.0.12"
shm_size = "host"
devices = [0, 2]
""",
    Path("pond.toml"),
)
CPU = """
{"Env": ["SUITE_HOST=h1"],
 "HostConfig": {
  "CapDrop": ["ALL"],
  "ExtraHosts": ["h1:198.18.0.11", "h2:198.18.0.12"],
  "IpcMode": "private",
  "LogConfig": {"Config": {"max-file": "1", "max-size": "10m"}, "Type": "json-file"},
  "Mounts": [{"Source": "ddp-suite-pond", "Target": "/var/lib/suite", "Type": "volume",
   "VolumeOptions": {"Labels": {"ddp-backend-suite.cluster": "pond", "ddp-backend-suite.role": "worker"}}}],
  "NetworkMode": "host",
  "Privileged": false,
  "ReadonlyRootfs": true,
  "RestartPolicy": {"Name": "no"},
  "SecurityOpt": ["no-new-privileges:true"],
  "ShmSize": 2147483648,
  "Tmpfs": {"/run": "rw,nosuid,nodev,noexec,mode=0755,size=16m",
            "/tmp": "rw,nosuid,nodev,noexec,mode=1777,size=1g"}},
 "Hostname": "h1"}
"""
GPU_ADDS = """
{"DeviceRequests": [{"Capabilities": [["gpu", "compute", "utility"]], "DeviceIDs": ["0", "2"], "Driver": "nvidia"}],
 "IpcMode": "host",
 "Ulimits": [{"Hard": -1, "Name": "memlock", "Soft": -1}]}
"""


def test_a_cpu_hosts_container_is_as_recorded() -> None:
    assert container_options(CLUSTER.hosts[0], CLUSTER, gpu=False) == json.loads(CPU)


def test_a_gpu_hosts_container_gets_its_devices_and_locked_memory_besides() -> None:
    options = container_options(CLUSTER.hosts[1], CLUSTER, gpu=True)
    expected = json.loads(CPU)["HostConfig"] | json.loads(GPU_ADDS)
    del expected["ShmSize"]  # the host's own
    assert options["HostConfig"] == expected


def test_without_a_list_a_gpu_host_gives_all_its_devices() -> None:
    requests = container_options(CLUSTER.hosts[0], CLUSTER, gpu=True)["HostConfig"]["DeviceRequests"]
    assert requests == [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu", "compute", "utility"]]}]


def test_a_container_counts_its_devices_anew_and_keeps_uuids() -> None:
    def inside(*devices: str) -> tuple[str, ...]:
        return devices_inside(replace(CLUSTER.hosts[1], devices=devices))

    assert inside() == ()
    assert inside("0") == ("0",)
    assert inside("2") == ("0",)
    assert inside("0", "2") == ("0", "1")
    assert inside("10", "3", "1") == ("2", "1", "0")
    assert inside("GPU-4f1c", "GPU-92aa") == ("GPU-4f1c", "GPU-92aa")


def test_a_plan_names_the_devices_as_its_ranks_see_them() -> None:
    from suite.cluster_actions import slots_of

    assert [host.devices for host in slots_of(CLUSTER, {"h1": "eth0", "h2": "eth0"})] == [(), ("0", "1")]


def test_a_host_with_rdma_gives_its_devices_and_locked_memory() -> None:
    for gpu in (False, True):
        host = replace(CLUSTER.hosts[1], rdma=True)
        added = container_options(host, CLUSTER, gpu)["HostConfig"]
        assert added["Devices"] == [
            {"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rw"}
        ]
        assert added["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
        assert container_options(CLUSTER.hosts[1], CLUSTER, gpu)["HostConfig"].get("Devices") is None


def test_no_container_gets_the_engines_socket_or_privileges() -> None:
    from suite.cluster.inventory import load

    example = load(project_root() / "hosts" / "example-rtx3090.toml")
    for host in example.hosts:
        limits = container_options(host, example, gpu=True)["HostConfig"]
        assert "docker.sock" not in json.dumps(limits)
        assert limits["Privileged"] is False
        assert "CapAdd" not in limits
        assert [mount["Type"] for mount in limits["Mounts"]] == ["volume"]


def test_the_digest_changes_with_whatever_must_not_be_kept() -> None:
    host = CLUSTER.hosts[0]

    def of(cluster: object = CLUSTER, image: str = "sha256:1", gpu: bool = False) -> str:
        return digest(container_options(host, cluster, gpu), image, cluster)  # type: ignore[arg-type]

    variants = {
        of(),
        of(image="sha256:2"),
        of(gpu=True),
        of(replace(CLUSTER, container_ssh_port=2223)),
        of(replace(CLUSTER, read_only=False)),
        of(replace(CLUSTER, hosts=CLUSTER.hosts[:1])),
    }
    assert len(variants) == 6
    assert of() == of()


def test_labels_say_whose_it_is() -> None:
    marks = labels(CLUSTER.hosts[0], CLUSTER, "abc123", "sha256:1", False)
    assert marks["ddp-backend-suite.role"] == "worker"
    assert marks["ddp-backend-suite.deployment"] == "abc123"
    assert marks["ddp-backend-suite.host"] == "h1"
