# shellcheck shell=bash
# What engine-debian.sh and base-image.sh share: messages, the machine's distribution, and apt sources of another Debian suite.
# Sourced, never run. No mirror is written down here: every address comes from the machine's own apt sources.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 2
}

require_root() {
    [ "$(id -u)" -eq 0 ] || die "$1: run it as root, for example: sudo $0"
}

# One field of /etc/os-release (ID, VERSION_CODENAME ...), empty where it has none.
os_release() {
    (
        # shellcheck disable=SC1091 # the machine's own file
        . /etc/os-release
        printf '%s' "${!1:-}"
    )
}

# The first archive of this machine's apt sources that serves its own release, e.g. for debootstrap; empty where there is none
# that debootstrap can read.
machine_mirror() {
    local codename
    codename=$(os_release VERSION_CODENAME)
    # shellcheck disable=SC2016 # $(REPO_URI) is apt's own format syntax
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 2>/dev/null |
        awk -v suite="$codename" '$2 == suite && $3 == "main" && $1 ~ /^(https?|file|copy):/ { print $1; exit }'
}

# foreign_apt SUITE: writes a copy of this Debian machine's apt sources with SUITE in place of its own release into a new folder,
# with lists and archives of its own, updates those lists, and sets FOREIGN_APT to the apt options that use them. The
# machine's own sources and lists stay as they are. The caller removes FOREIGN_DIR.
foreign_apt() {
    local own file
    own=$(os_release VERSION_CODENAME)
    FOREIGN_DIR=$(mktemp -d)
    mkdir -p "$FOREIGN_DIR"/{parts,lists/partial,archives/partial}
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        # Only archives of this release: a third party's need not know the other one.
        grep -Eq "(^|[[:space:]])$own" "$file" || continue
        sed -E "s/(^|[[:space:]])$own/\\1$1/g" "$file" >"$FOREIGN_DIR/parts/$(basename "$file")"
    done
    [ -n "$(ls -A "$FOREIGN_DIR/parts")" ] || die "no apt source of this machine names its release $own: add one, then run this again"
    FOREIGN_APT=(
        -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$FOREIGN_DIR/parts"
        -o "Dir::State::lists=$FOREIGN_DIR/lists" -o "Dir::Cache::archives=$FOREIGN_DIR/archives"
        -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
        -o "Acquire::Languages=none" -o "APT::Sandbox::User=root"
    )
    timeout 300 apt-get "${FOREIGN_APT[@]}" -qq update ||
        die "the package lists of $1 could not be read from this machine's apt sources: see apt's message above"
}
