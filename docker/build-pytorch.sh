#!/usr/bin/env bash
# Build one PyTorch wheel that has nccl, gloo and mpi, or take an existing wheel. See --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=build-lib.sh
. "$(dirname "$0")/build-lib.sh"

VERSION=
URL=
COMMIT=
SOURCE=
WHEEL_FILE=
WHEEL_URL=
WHEEL_SHA256=
MPI=/opt/openmpi
CUDA=/usr/local/cuda
ARCHITECTURES=
JOBS=
OUT=/wheels
WORK=${TMPDIR:-/tmp}/build-pytorch
PYTHON=python3
# A compiler of torch's CUDA kernels takes several gibibytes.
JOB_GIB=4

usage() {
    cat <<HELP
usage: build-pytorch.sh --version VERSION (--url URL --commit SHA | --source DIR | --wheel-file FILE | --wheel-url URL) [options]

  --version VERSION       what torch must call itself, e.g. 2.0.1
  --url URL, --commit SHA clone the tag vVERSION from there; it must be that commit
  --source DIR            a checkout with its submodules that is here already
  --wheel-file FILE       use this wheel instead of building one
  --wheel-url URL         fetch and use that wheel
  --wheel-sha256 HEX      the wheel's SHA-256: always needed for --wheel-url, checked for --wheel-file where given
  --mpi DIR               the Open MPI to build against (default $MPI)
  --cuda DIR              the CUDA toolkit (default $CUDA)
  --architectures LIST    CUDA architectures, e.g. 8.6 or "8.0;8.6+PTX"
  --jobs N                parallel jobs (default: one per core and per $JOB_GIB GiB of free memory)
  --out DIR               where the wheel goes (default $OUT)
  --work DIR              where the clone is built, as DIR/pytorch, which is removed before and afterwards (default $WORK); what the
                          compiler's cache holds counts for builds in the same folder only
  --python PROGRAM        the Python it is for, with the packages of requirements/build.txt (default $PYTHON)
HELP
}

while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --version | --url | --commit | --source | --wheel-file | --wheel-url | --wheel-sha256 | --mpi | --cuda | --architectures | --jobs | --out | --work | --python)
        [ $# -ge 2 ] || die "$1 needs a value; see --help"
        case $1 in
        --version) VERSION=$2 ;;
        --url) URL=$2 ;;
        --commit) COMMIT=$2 ;;
        --source) SOURCE=$2 ;;
        --wheel-file) WHEEL_FILE=$2 ;;
        --wheel-url) WHEEL_URL=$2 ;;
        --wheel-sha256) WHEEL_SHA256=$2 ;;
        --mpi) MPI=$2 ;;
        --cuda) CUDA=$2 ;;
        --architectures) ARCHITECTURES=$2 ;;
        --jobs) JOBS=$2 ;;
        --out) OUT=$2 ;;
        --work) WORK=$2 ;;
        --python) PYTHON=$2 ;;
        esac
        shift 2
        ;;
    *) die "unknown argument '$1'; see --help" ;;
    esac
done
[ -n "$VERSION" ] || die "--version is missing: say which torch this must be"

# An existing wheel: its backends are proven at the end of the image's build like those of any other.
if [ -n "$WHEEL_FILE$WHEEL_URL" ]; then
    mkdir -p "$OUT"
    if [ -n "$WHEEL_FILE" ]; then
        [ -r "$WHEEL_FILE" ] || die "cannot read $WHEEL_FILE: in an image's build, put the wheel into docker/offline/ and name it without folder"
        [ -z "$WHEEL_SHA256" ] || verify "$WHEEL_FILE" "$WHEEL_SHA256"
        cp "$WHEEL_FILE" "$OUT/"
        say "taking the existing wheel ${WHEEL_FILE##*/}"
    else
        name=${WHEEL_URL##*/}
        name=${name%%[?#]*}
        fetch "$WHEEL_URL" "$OUT/${name//%2B/+}" "$WHEEL_SHA256"
    fi
    exit 0
fi

[ -n "$ARCHITECTURES" ] || die "--architectures is missing: without it torch is built for every GPU there is, which takes many times as long"
[ -x "$MPI/bin/mpicc" ] || die "there is no $MPI/bin/mpicc: torch would be built without mpi"
[ -x "$CUDA/bin/nvcc" ] || die "there is no $CUDA/bin/nvcc: torch would be built without nccl"
command -v ninja >/dev/null || die "there is no ninja: the packages of requirements/build.txt are needed"
JOBS=$(jobs_for "$JOBS" "$JOB_GIB")

if [ -z "$SOURCE" ]; then
    # Always the same folder: the compiler is called with absolute paths, and its cache (ccache) finds what an interrupted build
    # has done only where these are the same.
    SOURCE=$WORK/pytorch
    rm -rf "$SOURCE"
    trap 'rm -rf "$SOURCE"' EXIT
    mkdir -p "$WORK"
    checkout "$URL" "v$VERSION" "$COMMIT" "$SOURCE"
fi
cd "$SOURCE"

# All three backends in one build, so that a comparison of backends never compares two builds. The bundled NCCL is linked
# into it. Without the two PYTORCH_BUILD variables torch would not call itself by its release. The profiler (Kineto) would need
# CUPTI, which the base of the runtime stage lacks.
export PATH="$MPI/bin:$CUDA/bin:$PATH"
export CUDA_HOME=$CUDA CMAKE_PREFIX_PATH=$MPI
export USE_DISTRIBUTED=1 USE_MPI=1 USE_GLOO=1 USE_NCCL=1 USE_SYSTEM_NCCL=0
export USE_CUDA=1 USE_CUDNN=1 TORCH_CUDA_ARCH_LIST=$ARCHITECTURES
export BLAS=OpenBLAS USE_KINETO=0 BUILD_TEST=0
export PYTORCH_BUILD_VERSION=$VERSION PYTORCH_BUILD_NUMBER=1
export MAX_JOBS=$JOBS
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi

say "configuring torch $VERSION for CUDA architectures $ARCHITECTURES"
"$PYTHON" setup.py build --cmake-only
# A part that is missing only warns while CMake runs and is switched off: find out now, not after hours.
for part in USE_CUDA USE_CUDNN USE_DISTRIBUTED USE_NCCL USE_GLOO USE_MPI; do
    entry=$(grep -m 1 "^$part:" build/CMakeCache.txt || true)
    case $entry in
    *:BOOL=ON | *:BOOL=1 | *:BOOL=TRUE | *:BOOL=YES) ;;
    *) die "CMake has switched $part off (its cache says '${entry:-nothing}'): see its warnings above" ;;
    esac
done

say "building torch $VERSION with $JOBS jobs: this takes hours on a few cores"
"$PYTHON" setup.py bdist_wheel
wheel_from dist "$OUT"
if command -v ccache >/dev/null; then ccache --show-stats >&2 || true; fi
