"""What is known of the MPI library without initialising it."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Mapping

OMPI_INFO_SECONDS = 20


@functools.cache
def ompi_info() -> str:
    """The output of ``ompi_info``; empty where there is none."""
    program = shutil.which("ompi_info")
    if program is None:
        return ""
    words = [program, "--parsable", "--level", "9", "--all"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=OMPI_INFO_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def library_version() -> str | None:
    """E.g. "Open MPI 5.0.7"; None where no Open MPI tells."""
    match = re.search(r"^(?:ompi:version:full|open mpi:version|mca:mpi:base:version):v?(\S+)$", ompi_info(), re.M)
    return f"Open MPI {match.group(1)}" if match else None


def cuda_aware() -> bool | None:
    """Whether Open MPI was built with CUDA support; None where it does not say."""
    match = re.search(r"built_with_cuda_support:value:(true|false)", ompi_info())
    return match.group(1) == "true" if match else None


def single_copy(environ: Mapping[str, str]) -> str | None:
    """The setting for copies between processes of one host, as mpirun hands it to its ranks."""
    for name in ("OMPI_MCA_smsc", "OMPI_MCA_btl_vader_single_copy_mechanism"):
        if name in environ:
            return f"{name.removeprefix('OMPI_MCA_')}={environ[name]}"
    return None
