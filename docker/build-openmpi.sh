#!/usr/bin/env bash
# Build a CUDA-aware Open MPI 4.1 from its release tarball, or from an unpacked source tree. See --help.
# Needs a C and C++ compiler, make, perl and, of CUDA, only the header cuda.h: the driver's library is opened when a program runs.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=build-lib.sh
. "$(dirname "$0")/build-lib.sh"

VERSION=
URL=
SHA256=
TARBALL=
SOURCE=
PREFIX=/opt/openmpi
CUDA=/usr/local/cuda
JOBS=

usage() {
    cat <<HELP
usage: build-openmpi.sh --version VERSION (--url URL | --tarball FILE | --source DIR) [options]

  --version VERSION  what the result must call itself, e.g. 4.1.8
  --url URL          fetch the release tarball from there; needs --sha256
  --tarball FILE     a release tarball that is here already; needs --sha256
  --sha256 HEX       the tarball's SHA-256; anything else is refused
  --source DIR       an unpacked source tree instead of a tarball (nothing is verified)
  --prefix DIR       where to install (default $PREFIX)
  --cuda DIR         CUDA toolkit, or any folder with include/cuda.h (default $CUDA)
  --jobs N           parallel jobs (default: one per core and GiB of free memory)

Exit status 0 only when the installed ompi_info confirms the version and CUDA support.
HELP
}

while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --version | --url | --tarball | --sha256 | --source | --prefix | --cuda | --jobs)
        [ $# -ge 2 ] || die "$1 needs a value; see --help"
        case $1 in
        --version) VERSION=$2 ;;
        --url) URL=$2 ;;
        --tarball) TARBALL=$2 ;;
        --sha256) SHA256=$2 ;;
        --source) SOURCE=$2 ;;
        --prefix) PREFIX=$2 ;;
        --cuda) CUDA=$2 ;;
        --jobs) JOBS=$2 ;;
        esac
        shift 2
        ;;
    *) die "unknown argument '$1'; see --help" ;;
    esac
done

[ -n "$VERSION" ] || die "--version is missing: say which Open MPI this must be"
[ -n "$URL$TARBALL$SOURCE" ] ||
    die "there is no source: give --url, --tarball or --source (in an image's build: OPENMPI_URL or OPENMPI_FILE; docker/variants/cuda.toml has the upstream address)"
[ -z "$SOURCE" ] || [ -z "$URL$TARBALL" ] || die "--source excludes --url and --tarball"
JOBS=$(jobs_for "$JOBS" 1)
[ -f "$CUDA/include/cuda.h" ] || die "there is no $CUDA/include/cuda.h: --cuda must name a CUDA toolkit, or the result would not be CUDA-aware"

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

if [ -z "$SOURCE" ]; then
    if [ -n "$TARBALL" ]; then # one that was brought is preferred to fetching
        verify "$TARBALL" "$SHA256"
    else
        TARBALL=$WORK/${URL##*/}
        fetch "$URL" "$TARBALL" "$SHA256"
    fi
    SOURCE=$WORK/source
    mkdir "$SOURCE"
    tar -xf "$TARBALL" -C "$SOURCE" --strip-components 1 --no-same-owner
fi
[ -x "$SOURCE/configure" ] || die "there is no configure in $SOURCE: this is no release of Open MPI (a git checkout needs autogen.pl first)"
SOURCE=$(cd "$SOURCE" && pwd)

# Nothing is taken from the machine by chance: hwloc, libevent and PMIx are those in the release, and its transports are TCP,
# shared memory and CUDA IPC. UCX would use non-blocking streams, with which torch's mpi backend races.
# The C bindings are all that torch and mpi4py call. mpirun finds its remote side by this prefix.
configure=(
    "$SOURCE/configure"
    "--prefix=$PREFIX"
    "--with-cuda=$CUDA"
    --without-ucx --without-verbs --without-ofi --without-psm --without-psm2
    --with-hwloc=internal --with-libevent=internal --with-pmix=internal
    --enable-orterun-prefix-by-default
    --enable-mca-no-build=btl-uct
    --disable-mpi-fortran --disable-oshmem --disable-io-romio --disable-man-pages
    --enable-shared --disable-static
)

mkdir "$WORK/build"
cd "$WORK/build"
say "configuring: ${configure[*]}"
"${configure[@]}" >configure.log 2>&1 || {
    tail -n 30 configure.log >&2
    die "configure failed; the end of its output stands above"
}
say "building with $JOBS jobs"
make --jobs="$JOBS" >make.log 2>&1 || {
    grep -E -B 2 -A 8 -m 3 'error:|Error [0-9]' make.log >&2 || tail -n 30 make.log >&2
    die "make failed; the first errors stand above"
}
make install >install.log 2>&1 || {
    tail -n 30 install.log >&2
    die "make install failed; the end of its output stands above"
}

info=$("$PREFIX/bin/ompi_info" --parsable --all)
has() { grep -qxF "$1" <<<"$info"; }
has "ompi:version:full:$VERSION" || die "$PREFIX is Open MPI $(sed -n 's/^ompi:version:full://p' <<<"$info"), $VERSION is demanded"
cuda=$(grep -m 1 'mpi_built_with_cuda_support:value:' <<<"$info" || true)
case $cuda in
*:true) say "Open MPI $VERSION is in $PREFIX; ompi_info: $cuda" ;;
*) die "Open MPI in $PREFIX was built without CUDA support (ompi_info says '${cuda:-nothing about it}')" ;;
esac
