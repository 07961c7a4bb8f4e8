# shellcheck shell=bash
# What build-openmpi.sh, build-pytorch.sh and build-torchvision.sh share: messages, verified downloads, pinned checkouts.
# Sourced, never run.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 2
}

# verify FILE SHA256: ends the build unless FILE has that checksum.
verify() {
    local found
    [[ $2 =~ ^[0-9a-f]{64}$ ]] || die "'$2' is no SHA-256 for ${1##*/}: nothing is used unverified"
    [ -r "$1" ] || die "cannot read $1"
    found=$(sha256sum "$1" | cut -d ' ' -f 1)
    [ "$found" = "$2" ] || die "$1 has the SHA-256 $found, $2 is demanded: the file is damaged, or is another one"
}

# fetch URL FILE SHA256: downloads and verifies.
fetch() {
    [[ $3 =~ ^[0-9a-f]{64}$ ]] || die "'$3' is no SHA-256 for ${1##*/}: nothing is used unverified"
    say "fetching $1"
    curl --fail --silent --show-error --location --retry 3 --connect-timeout 30 --max-time 3600 --output "$2" "$1" ||
        die "could not fetch $1"
    verify "$2" "$3"
}

# checkout URL TAG COMMIT FOLDER: the tree of a tag with its submodules, refused unless the tag still names that commit.
# The submodules are some dozens of repositories: one that does not answer is asked again.
checkout() {
    local url=$1 tag=$2 commit=$3 folder=$4 found try
    [[ $commit =~ ^[0-9a-f]{40}$ ]] || die "'$commit' is no full commit for $tag: a tag can be moved, a commit cannot"
    [ -n "$url" ] || die "no repository is given for $tag (docker/variants/cuda.toml has the upstream address)"
    say "cloning $tag of $url"
    timeout 3600 git clone --quiet --depth 1 --branch "$tag" -c advice.detachedHead=false "$url" "$folder" || die "could not clone $tag of $url"
    found=$(git -C "$folder" rev-parse HEAD)
    [ "$found" = "$commit" ] || die "$tag of $url is the commit $found, $commit is demanded"
    [ -f "$folder/.gitmodules" ] || return 0
    for try in 1 2 3; do
        timeout 3600 git -C "$folder" submodule --quiet update --init --recursive --depth 1 --jobs 4 && return 0
        say "the submodules could not all be fetched (try $try of 3)"
    done
    die "the submodules of $tag could not be fetched"
}

# jobs_for WANTED GIB: WANTED, or else as many parallel compilers as there are cores and GIB gibibytes of free memory for each.
jobs_for() {
    local cores fitting
    if [ -n "$1" ]; then
        [[ $1 =~ ^[1-9][0-9]{0,3}$ ]] || die "'$1' is no number of jobs"
        printf '%s' "$1"
        return
    fi
    cores=$(nproc)
    fitting=$(awk -v gib="$2" '/^MemAvailable:/ { print int($2 / 1048576 / gib) }' /proc/meminfo)
    if [ "${fitting:-0}" -lt 1 ]; then fitting=1; fi
    if [ "$fitting" -lt "$cores" ]; then printf '%s' "$fitting"; else printf '%s' "$cores"; fi
}

# wheel_from FOLDER OUT: moves the one wheel of a build to OUT.
wheel_from() {
    local wheels=("$1"/*.whl)
    [ -f "${wheels[0]}" ] || die "the build left no wheel in $1"
    [ ${#wheels[@]} -eq 1 ] || die "the build left ${#wheels[@]} wheels in $1, one is due: ${wheels[*]##*/}"
    mkdir -p "$2"
    mv "${wheels[0]}" "$2/"
    say "built $2/${wheels[0]##*/}"
}
