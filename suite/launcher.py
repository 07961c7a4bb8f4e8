"""The command lines that start the ranks of a launch: pure functions from a specification to words.

nccl and gloo start by torchrun, one on every host, with a static rendezvous at the first host; mpi starts by
one mpirun in the first host's container. Either way a rank runs ``python3 -m suite.worker run --spec FILE``,
and everything that could differ between the two (threads, interfaces, variables) is set by the worker from
that file, before torch is imported. Commands are lists of words; no shell ever sees them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from suite.records import LaunchSpec

SPEC_FILE = "spec.json"
MPI_AGENT = "/usr/local/bin/suite-mpi-ssh"
# What mpirun hands on to its remote ranks; the rest comes from the specification, as under torchrun.
FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "USE_LIBUV")
# Time that the supervisor waits beyond the ranks' own deadline before it ends them.
GRACE_SECONDS = 5.0


def spec_path(spec: LaunchSpec) -> str:
    """Where the launch's specification lies, seen by its ranks."""
    return f"{spec.output_folder}/{SPEC_FILE}"


def worker_words(spec: LaunchSpec) -> list[str]:
    """The arguments of ``python -m`` that run one rank."""
    return ["suite.worker", "run", "--spec", spec_path(spec)]


def uses_mpirun(spec: LaunchSpec) -> bool:
    """Whether mpirun starts this launch."""
    return spec.arm.backend == "mpi" and spec.kind != "single"


def supervised(command: Sequence[str], deadline_seconds: float, *, python: str, lease: bool) -> list[str]:
    """The command under the supervisor that ends every descendant at the deadline, or when the lease ends."""
    return [
        python,
        "-m",
        "suite.worker",
        "supervise",
        "--deadline",
        f"{deadline_seconds + GRACE_SECONDS:g}",
        *(["--lease"] if lease else []),
        "--",
        *command,
    ]


def host_commands(
    spec: LaunchSpec, *, python: str, mpi_major: int, as_root: bool = False, agent: str | None = MPI_AGENT
) -> dict[str, list[str]]:
    """The command of each host that starts something, by host name.

    Args:
        spec: the launch.
        python: the interpreter that has torch.
        mpi_major: major version of Open MPI; its launcher's options changed with 5.
        as_root: whether mpirun runs as root (only without a container).
        agent: what mpirun calls to reach other hosts; None where there are none.
    """
    if spec.kind == "single":
        return {spec.hosts[0].name: [python, "-m", *worker_words(spec)]}
    if uses_mpirun(spec):
        words = mpirun_words(spec, python=python, mpi_major=mpi_major, as_root=as_root, agent=agent)
        return {spec.hosts[0].name: words}
    return {host.name: torchrun_words(spec, node, python=python) for node, host in enumerate(spec.hosts)}


def torchrun_words(spec: LaunchSpec, node: int, *, python: str) -> list[str]:
    """torchrun on host number ``node``. A rank that fails is not restarted: that would be another launch."""
    return [
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(spec.hosts)}",
        f"--node_rank={node}",
        f"--nproc_per_node={spec.hosts[node].slots}",
        f"--master_addr={spec.master_address}",
        f"--master_port={spec.master_port}",
        "--max_restarts=0",
        "-m",
        *worker_words(spec),
    ]


def mpirun_words(spec: LaunchSpec, *, python: str, mpi_major: int, as_root: bool, agent: str | None) -> list[str]:
    """mpirun for all ranks, in the order of the hosts, so that an MPI rank equals the global rank.

    Hosts are given by name: with addresses, Open MPI 5 puts every rank on the first host. Binding is off, as
    torchrun has none. Single-copy through CMA is off: it needs ptrace rights that the container lacks.
    """
    local = len(spec.hosts) == 1
    names = "localhost" if local else None
    host_list = ",".join(f"{names or host.name}:{host.slots}" for host in spec.hosts)
    words = ["mpirun", "-np", str(spec.world_size), "-H", host_list, "--bind-to", "none"]
    words += ["--map-by", "slot", "--timeout", f"{spec.deadline_seconds:.0f}"]
    if as_root:
        words += ["--allow-run-as-root"]
    interfaces = sorted({host.interface for host in spec.hosts if host.interface})
    if mpi_major >= 5:
        words += ["--mca", "smsc", "^cma"]
        if not local:
            words += ["--prtemca", "plm_ssh_agent", agent or MPI_AGENT, *_keepalive("--prtemca")]
            if interfaces:
                words += ["--prtemca", "prte_if_include", ",".join(interfaces)]
    else:
        words += ["--mca", "btl_vader_single_copy_mechanism", "none"]
        if not local:
            words += ["--mca", "plm_rsh_agent", agent or MPI_AGENT, *_keepalive("--mca")]
            if interfaces:
                words += ["--mca", "oob_tcp_if_include", ",".join(interfaces)]
    if interfaces and not local:
        words += ["--mca", "btl_tcp_if_include", ",".join(interfaces)]
    for name in FORWARDED:
        words += ["-x", name]
    return [*words, python, "-m", *worker_words(spec)]


def _keepalive(option: str) -> list[str]:
    """A host that is gone is noticed after 5 + 4 · 3 s, by mpirun and by its daemon on the host, which ends with it."""
    settings = {"time": 5, "intvl": 3, "probes": 4}
    return [word for name, value in settings.items() for word in (option, f"oob_tcp_keepalive_{name}", str(value))]


def mpi_major(version: str) -> int:
    """Major version of a text such as "Open MPI 5.0.7"; 5 when it does not say."""
    match = re.search(r"(\d+)\.\d+", version)
    return int(match.group(1)) if match else 5
