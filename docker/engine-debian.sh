#!/usr/bin/env bash
# Give a Debian or Ubuntu machine what the suite's containers need, without a container registry: a Docker engine, the compose
# and buildx plugins (from Debian's or Ubuntu's packages), and the base image debian:trixie-slim (by debootstrap).
# What is there already is left as it is, so it can be run again at any time, for instance after a restart of the machine.
#
#   SUITE_BASE_IMAGE=auto   (default) ask a registry for the base image first, make it where none answers
#   SUITE_BASE_IMAGE=make   make it, ask no registry
#   SUITE_ENGINE_WAIT=60    seconds to wait for the engine to answer
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=debian-lib.sh
. ./debian-lib.sh

BASE=debian:trixie-slim
BASE_IMAGE=${SUITE_BASE_IMAGE:-auto}
WAIT=${SUITE_ENGINE_WAIT:-60}
LOG=/var/log/dockerd.log
LISTS_READ=
FOREIGN_DIR=
trap '[ -z "$FOREIGN_DIR" ] || rm -rf "$FOREIGN_DIR"' EXIT

case $BASE_IMAGE in auto | make) ;; *) die "SUITE_BASE_IMAGE is '$BASE_IMAGE'; it can be auto or make" ;; esac
case $WAIT in '' | *[!0-9]*) die "SUITE_ENGINE_WAIT is '$WAIT'; it must be a whole number of seconds" ;; esac
require_root "this installs packages and starts a daemon"
command -v apt-get >/dev/null || die "this machine has no apt-get: install Docker and its compose plugin as your distribution documents it"
export DEBIAN_FRONTEND=noninteractive

engine_answers() { command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; }

read_lists() {
    [ -z "$LISTS_READ" ] || return 0
    timeout 300 apt-get -qq update || die "apt-get update failed: see its message above"
    LISTS_READ=yes
}

# The version apt would install, empty where it knows none. (No grep -q on apt-cache: with pipefail its SIGPIPE counts.)
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([^(].*\)$/\1/p'; }

has_candidate() { [ -n "$(candidate "$1")" ]; }

# Only what is missing: a package that is there keeps its version.
install() {
    local package missing=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    read_lists
    say "installing from this machine's apt sources: ${missing[*]}"
    timeout 900 apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends -y "${missing[@]}" >/dev/null ||
        die "apt-get install ${missing[*]} failed: see its message above"
}

# Debian 12 has no package of these plugins (its docker-compose is version 1): Debian 13's need only libc6 >= 2.34.
install_from_trixie() {
    [ "$(os_release ID)" = debian ] || die "no package of $* for this machine: install them as your distribution documents it"
    say "installing from Debian 13's packages, read apart from this machine's own package lists: $*"
    foreign_apt trixie
    (cd "$FOREIGN_DIR" && timeout 600 apt-get "${FOREIGN_APT[@]}" -qq download "$@") || die "could not download $* of Debian 13"
    dpkg -i "$FOREIGN_DIR"/*.deb >/dev/null || die "Debian 13's packages of $* do not install here: see dpkg's message above"
    rm -rf "$FOREIGN_DIR"
    FOREIGN_DIR=
}

install_engine() {
    if command -v dockerd >/dev/null; then
        say "engine: dockerd is installed"
        return
    fi
    local packages=(docker.io)
    read_lists
    has_candidate docker.io || die "no package docker.io: enable the component it is in (Ubuntu: universe), then run this again"
    # Where the client is a package of its own (Debian 13), docker.io only recommends it.
    if ! command -v docker >/dev/null && has_candidate docker-cli; then packages+=(docker-cli); fi
    # dockerd calls iptables for its bridge network; the package's dependencies leave it out in some releases.
    install "${packages[@]}" iptables ca-certificates
}

install_plugins() {
    if timeout 10 docker compose version >/dev/null 2>&1; then
        say "compose: $(docker compose version --short)"
    else
        read_lists
        if has_candidate docker-compose-v2; then
            install docker-compose-v2
        elif [[ $(candidate docker-compose) =~ ^([2-9]|[1-9][0-9])\. ]]; then # version 1 is no plugin
            install docker-compose
        else
            install_from_trixie docker-compose
        fi
    fi
    if timeout 10 docker buildx version >/dev/null 2>&1; then
        say "buildx: $(docker buildx version | awk '{ print $2 }')"
    else
        read_lists
        if has_candidate docker-buildx; then install docker-buildx; else install_from_trixie docker-buildx; fi
    fi
    timeout 10 docker compose version >/dev/null || die "docker compose does not answer after its installation"
}

# Whether a process is that program, and no zombie. (From /proc: a bare machine has no pgrep.)
is_running() {
    local pid=$1 program=$2
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$program" ] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$pid/status"
}

dockerd_runs() {
    local process
    for process in /proc/[0-9]*; do
        if is_running "${process#/proc/}" dockerd; then return 0; fi
    done
    return 1
}

# A dockerd that was killed leaves its pid file, and the next one refuses to start although that process is gone, a zombie, or
# by now another program. The same holds for the containerd it starts.
remove_stale_pid_file() {
    local file=$1 program=$2 pid
    [ -f "$file" ] || return 0
    pid=$(tr -cd 0-9 <"$file")
    if [ -n "$pid" ] && is_running "$pid" "$program"; then return 0; fi
    say "removing $file: process ${pid:-unknown} is no running $program"
    rm -f "$file"
}

start_engine() {
    if [ -d /run/systemd/system ] && timeout 120 systemctl enable --now docker >/dev/null 2>&1; then
        say "engine: started by systemd"
    else
        remove_stale_pid_file /run/docker.pid dockerd
        remove_stale_pid_file /run/docker/containerd/containerd.pid containerd
        if dockerd_runs; then
            say "engine: a dockerd runs but does not answer yet"
        else
            say "engine: starting dockerd in the background, log in $LOG"
            setsid nohup dockerd >>"$LOG" 2>&1 </dev/null &
        fi
    fi
    local deadline=$((SECONDS + WAIT))
    until engine_answers; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            tail -n 15 "$LOG" >&2 2>/dev/null || true
            die "the engine did not answer within $WAIT s (SUITE_ENGINE_WAIT); its last log lines, if any, stand above"
        fi
        sleep 0.5
    done
}

provide_base_image() {
    if timeout 10 docker image inspect "$BASE" >/dev/null 2>&1; then
        say "base image: $BASE is there"
        return
    fi
    if [ "$BASE_IMAGE" = auto ]; then
        say "base image: asking a registry for $BASE"
        if timeout 300 docker pull --quiet "$BASE" >/dev/null 2>&1; then
            say "base image: $BASE pulled"
            return
        fi
        say "base image: no registry gave $BASE"
    fi
    command -v debootstrap >/dev/null || install debootstrap
    # On Ubuntu, Debian's archive keys are a package of their own.
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || install debian-archive-keyring
    ./base-image.sh
}

say "machine: $(os_release PRETTY_NAME), $(uname -m)"
if engine_answers; then
    say "engine: one answers ($(timeout 10 docker version --format '{{.Server.Version}}'))"
else
    if command -v docker >/dev/null; then
        say "engine: none answers; client $(docker --version | sed 's/^Docker version //; s/,.*//') at $(command -v docker)"
    else
        say "engine: neither engine nor client found"
    fi
    install_engine
    start_engine
    say "engine: $(timeout 10 docker version --format '{{.Server.Version}}') answers, storage $(timeout 10 docker info --format '{{.Driver}}')"
fi
install_plugins
provide_base_image
if [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ] && ! id -nG "$SUDO_USER" | grep -qw docker; then
    say "user $SUDO_USER is not in the group docker: 'sudo usermod -aG docker $SUDO_USER' and a new login let them use the engine"
fi
say "done"
