#!/usr/bin/env python3
"""Prove, at the end of an image's build, that its PyTorch has what a comparison needs; exit 1 if not.

A missing MPI or NCCL only warns while PyTorch is built, and a BLAS that is not the intended one shows in no
message at all: without this, the first sign would be a failed or a wrongly slow run. gloo and mpi are proven
by two processes that add a tensor; nccl needs a GPU, which a build has not, so there the proof is that this
PyTorch was built with it.

Imports torch, and nothing of the suite: the suite's code comes into the image after this.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

WORLD_SIZE = 2
SMOKE_SECONDS = 120.0
BACKENDS = ("nccl", "gloo", "mpi")
BLAS_LIBRARY = re.compile(r"blas|mkl", re.IGNORECASE)


def smoke(backend: str) -> None:
    """One rank of the smoke test: sum a tensor over two ranks, raise if the sum is wrong."""
    dist.init_process_group(backend)
    rank = dist.get_rank()
    size = dist.get_world_size()
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    if size != WORLD_SIZE or not bool((tensor == 3.0).all()):
        raise SystemExit(f"{backend}: world size {size}, sum {tensor[0].item()}; it must be 2 and 3.0")


def run_smoke(backend: str) -> str | None:
    """Start the two ranks of one backend as a launch does; None, or what went wrong."""
    ranks = str(WORLD_SIZE)
    if backend == "mpi":
        # Slots are as many as cores, and a build machine may have one.
        launcher = ["mpirun", "-n", ranks, "--oversubscribe", "--bind-to", "none", sys.executable]
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--node_rank=0"]
        launcher += [f"--nproc_per_node={ranks}", "--master_addr=127.0.0.1", f"--master_port={port}"]
    command = [*launcher, str(Path(__file__).resolve()), "--smoke", backend]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SMOKE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"two {backend} ranks did not end within {SMOKE_SECONDS:.0f} s"
    if done.returncode != 0:
        tail = "\n    ".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        return f"two {backend} ranks could not add a tensor (exit {done.returncode}):\n    {tail}"
    return None


def loaded_blas() -> set[str]:
    """The BLAS libraries that a matrix product of torch has brought into this process (Linux), by file name.

    One that is linked statically into torch is not among them.
    """
    torch.ones(64, 64) @ torch.ones(64, 64)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = {Path(fields[5]).resolve() for line in maps if len(fields := line.split(maxsplit=5)) == 6}
    # Debian names its alternatives alike (libblas.so.3), in a folder named after the implementation.
    return {f"{path.parent.name}/{path.name}" for path in mapped if BLAS_LIBRARY.search(path.name)}


def missing_parts(args: argparse.Namespace) -> list[str]:
    """Everything that is not as demanded, one plain line each."""
    problems = []
    if args.torch and torch.__version__.split("+")[0] != args.torch:
        problems.append(f"torch calls itself {torch.__version__}, {args.torch} is demanded")
    if args.cuda and torch.version.cuda != args.cuda:
        problems.append(f"torch was built for CUDA {torch.version.cuda}, {args.cuda} is demanded")
    available = {
        "nccl": dist.is_available() and dist.is_nccl_available(),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "mpi": dist.is_available() and dist.is_mpi_available(),
    }
    for backend in args.backends:
        if not available[backend]:
            problems.append(f"backend {backend} is not in this build of torch {torch.__version__}")
        elif backend != "nccl":
            failure = run_smoke(backend)
            if failure:
                problems.append(failure)
    if args.blas:
        blas = loaded_blas()
        if not any(args.blas in name for name in blas):
            seen = ", ".join(sorted(blas)) or "no known BLAS library"
            problems.append(f"torch computes with {seen}, {args.blas} is demanded")
    if args.cuda_aware_mpi:
        info = subprocess.run(
            ["ompi_info", "--parsable", "--all"], capture_output=True, text=True, timeout=60, check=False
        )
        if "mpi_built_with_cuda_support:value:true" not in info.stdout:
            problems.append("ompi_info does not say mpi_built_with_cuda_support:value:true")
    return problems


def backend_list(text: str) -> list[str]:
    """Parse ``gloo,mpi``; an unknown name is an error of argparse."""
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in BACKENDS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: name some of {', '.join(BACKENDS)}")
    return names


def main() -> int:
    """Command line; exit status 0 when everything demanded is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", type=backend_list, default=["gloo", "mpi"], help="demanded, by comma")
    parser.add_argument("--torch", help="demanded version, e.g. 2.0.1")
    parser.add_argument("--cuda", help="demanded CUDA version, e.g. 11.8")
    parser.add_argument("--blas", help="part of the demanded BLAS library's name, e.g. openblas")
    parser.add_argument("--cuda-aware-mpi", action="store_true", help="demand an Open MPI built with CUDA support")
    parser.add_argument("--smoke", choices=BACKENDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.smoke:
        smoke(args.smoke)
        return 0
    problems = missing_parts(args)
    for problem in problems:
        print(f"image check: {problem}", file=sys.stderr)
    if problems:
        print("image check: this image must not be used: see docker/ for how it is built", file=sys.stderr)
        return 1
    print(f"image check: torch with {', '.join(args.backends)}: as demanded", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
