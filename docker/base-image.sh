#!/usr/bin/env bash
# Make the base image debian:trixie-slim from Debian packages, with debootstrap: no container registry is asked.
# See --help. Needs root, debootstrap, and a Debian mirror (a local or internal one will do).
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=debian-lib.sh
. ./debian-lib.sh

SUITE=trixie
TAG=debian:trixie-slim
MIRROR=
SAVE=
LOAD=

usage() {
    cat <<HELP
usage: base-image.sh [--mirror URL] [--save FILE | --load FILE]

Makes $TAG from Debian packages and gives it to the Docker engine of this machine.
  --mirror URL  Debian mirror (http, https or file); default: this machine's apt sources, else debootstrap's own
  --save FILE   write the root file system to FILE (tar) instead; no engine is needed
  --load FILE   give such a FILE to the engine; no mirror is needed
For a machine without any network: --save on one that has a mirror, carry FILE over, --load there.
HELP
}

while [ $# -gt 0 ]; do
    case $1 in
    --mirror | --save | --load)
        [ $# -ge 2 ] || die "$1 needs a value; see --help"
        case $1 in --mirror) MIRROR=$2 ;; --save) SAVE=$2 ;; --load) LOAD=$2 ;; esac
        shift 2
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) die "unknown argument '$1'; see --help" ;;
    esac
done
[ -z "$SAVE" ] || [ -z "$LOAD" ] || die "--save and --load exclude each other"

import_tar() {
    timeout 300 docker import --change 'CMD ["bash"]' --change 'LABEL org.opencontainers.image.title=debian-trixie-slim' - "$TAG" >/dev/null
    say "the engine has $TAG now ($(docker image inspect --format '{{.Size}}' "$TAG" | awk '{ printf "%.0f MB", $1 / 1e6 }'))"
}

if [ -n "$LOAD" ]; then
    [ -r "$LOAD" ] || die "cannot read $LOAD"
    import_tar <"$LOAD"
    exit 0
fi

require_root "debootstrap makes device files and changes owners"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
[ -e "/usr/share/debootstrap/scripts/$SUITE" ] ||
    die "this debootstrap ($(debootstrap --version)) does not know $SUITE: install a newer one, or use --save on a newer machine"

if [ -z "$MIRROR" ] && [ "$(os_release ID)" = debian ]; then
    MIRROR=$(machine_mirror)
fi
# wget, which debootstrap calls, does not read apt's proxy setting.
proxy=$(apt-config shell p Acquire::http::Proxy | sed -n "s/^p='\(.*\)'$/\1/p")
[ -z "$proxy" ] || export http_proxy="${http_proxy:-$proxy}"

WORK=$(mktemp -d)
ROOT=$WORK/root
trap 'rm -rf --one-file-system "$WORK"' EXIT
if [ -n "$MIRROR" ]; then origin=$MIRROR; else origin="debootstrap's default mirror"; fi
say "making $TAG with debootstrap from $origin (about half a minute)"
timeout 900 debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$ROOT" ${MIRROR:+"$MIRROR"} >"$WORK/log" 2>&1 || {
    tail -n 15 "$WORK/log" >&2
    die "debootstrap failed, its last lines stand above: is the mirror reachable, and the debian-archive-keyring package installed?"
}

# Updates and security fixes, from where this machine gets its own.
if [ "$(os_release ID)" = debian ]; then
    own=$(os_release VERSION_CODENAME)
    # shellcheck disable=SC2016 # apt's own format syntax
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 2>/dev/null |
        awk -v own="$own" -v new="$SUITE" '$2 ~ "^" own "-(updates|security)$" && $3 == "main" && $1 ~ /^https?:/ {
            sub(own, new, $2); print "deb", $1, $2, "main" }' | sort -u >>"$ROOT/etc/apt/sources.list"
fi

# Slim: what no container reads is left out, now and in later installs.
cat >"$ROOT/etc/dpkg/dpkg.cfg.d/slim" <<'CONF'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
CONF
cat >"$ROOT/etc/apt/apt.conf.d/slim" <<'CONF'
Acquire::Languages "none";
APT::Keep-Downloaded-Packages "false";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
CONF
find "$ROOT/usr/share/doc" -mindepth 1 ! -type d ! -name copyright -delete
rm -rf "$ROOT"/usr/share/{man,info,locale}/* "$ROOT"/var/cache/apt/* "$ROOT"/var/lib/apt/lists/* "$ROOT"/var/log/*.log
mkdir -p "$ROOT/var/cache/apt/archives/partial" "$ROOT/var/lib/apt/lists/partial"

pack() { tar -C "$ROOT" --numeric-owner --sort=name -c .; }
if [ -n "$SAVE" ]; then
    pack >"$SAVE.part"
    mv "$SAVE.part" "$SAVE"
    say "wrote $SAVE; give it to an engine with: $0 --load $SAVE"
else
    pack | import_tar
fi
