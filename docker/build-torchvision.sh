#!/usr/bin/env bash
# Build the torchvision wheel that belongs to the torch installed here, or take an existing wheel. See --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=build-lib.sh
. "$(dirname "$0")/build-lib.sh"

VERSION=
URL=
COMMIT=
SOURCE=
WHEEL_FILE=
CUDA=/usr/local/cuda
ARCHITECTURES=
JOBS=
OUT=/wheels
PYTHON=python3
JOB_GIB=2

usage() {
    cat <<HELP
usage: build-torchvision.sh --version VERSION (--url URL --commit SHA | --source DIR | --wheel-file FILE) [options]

  --version VERSION       what torchvision must call itself, e.g. 0.15.2
  --url URL, --commit SHA clone the tag vVERSION from there; it must be that commit
  --source DIR            a checkout that is here already
  --wheel-file FILE       use this wheel instead of building one
  --cuda DIR              the CUDA toolkit (default $CUDA)
  --architectures LIST    CUDA architectures, the same as torch's
  --jobs N                parallel jobs (default: one per core and per $JOB_GIB GiB of free memory)
  --out DIR               where the wheel goes (default $OUT)
  --python PROGRAM        the Python that has torch (default $PYTHON)
HELP
}

while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --version | --url | --commit | --source | --wheel-file | --cuda | --architectures | --jobs | --out | --python)
        [ $# -ge 2 ] || die "$1 needs a value; see --help"
        case $1 in
        --version) VERSION=$2 ;;
        --url) URL=$2 ;;
        --commit) COMMIT=$2 ;;
        --source) SOURCE=$2 ;;
        --wheel-file) WHEEL_FILE=$2 ;;
        --cuda) CUDA=$2 ;;
        --architectures) ARCHITECTURES=$2 ;;
        --jobs) JOBS=$2 ;;
        --out) OUT=$2 ;;
        --python) PYTHON=$2 ;;
        esac
        shift 2
        ;;
    *) die "unknown argument '$1'; see --help" ;;
    esac
done
[ -n "$VERSION" ] || die "--version is missing: say which torchvision this must be"

if [ -n "$WHEEL_FILE" ]; then
    [ -r "$WHEEL_FILE" ] || die "cannot read $WHEEL_FILE: in an image's build, put the wheel into docker/offline/ and name it without folder"
    mkdir -p "$OUT"
    cp "$WHEEL_FILE" "$OUT/"
    say "taking the existing wheel ${WHEEL_FILE##*/}"
    exit 0
fi

[ -n "$ARCHITECTURES" ] || die "--architectures is missing: give the same as for torch"
"$PYTHON" -c 'import torch' || die "$PYTHON has no torch that can be imported: torchvision is built against it"
JOBS=$(jobs_for "$JOBS" "$JOB_GIB")

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
if [ -z "$SOURCE" ]; then
    SOURCE=$WORK/vision
    checkout "$URL" "v$VERSION" "$COMMIT" "$SOURCE"
fi
cd "$SOURCE"

# The suite takes models from it: no image files, no videos, and so none of their libraries.
export PATH="$CUDA/bin:$PATH" CUDA_HOME=$CUDA
export FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST=$ARCHITECTURES BUILD_VERSION=$VERSION MAX_JOBS=$JOBS
export TORCHVISION_USE_PNG=0 TORCHVISION_USE_JPEG=0 TORCHVISION_USE_NVJPEG=0
export TORCHVISION_USE_FFMPEG=0 TORCHVISION_USE_VIDEO_CODEC=0

say "building torchvision $VERSION with $JOBS jobs for CUDA architectures $ARCHITECTURES"
"$PYTHON" setup.py bdist_wheel
wheel_from dist "$OUT"
