#!/bin/sh
# The part of every worker image that does not depend on its PyTorch: the user, its folders, and the small programs of the suite.
# Run once, as root, while an image is built; the programs lie beside this file.
set -eu
here=$(dirname "$0")

# Some bases bring a user 1000 of their own.
if taken=$(getent passwd 1000); then userdel --remove "${taken%%:*}" 2>/dev/null; fi
groupadd --gid 1000 suite
useradd --uid 1000 --gid 1000 --home-dir /var/lib/suite --no-create-home --shell /bin/bash suite
# No password, yet not locked: sshd refuses locked accounts even with a key.
usermod --password '*' suite

# The home is where the controller puts what belongs to one deployment: keys and sshd's configuration. Always a volume.
install -d -o suite -g suite -m 0700 /var/lib/suite
install -d -m 0755 /opt/suite /usr/local/lib/suite

install -m 0755 "$here/worker-entrypoint" /usr/local/bin/suite-entrypoint
install -m 0755 "$here/start-sshd" /usr/local/bin/suite-sshd
install -m 0755 "$here/mpi-ssh" /usr/local/bin/suite-mpi-ssh

# In every process, however it was started: ranks by docker exec, their launchers by ssh.
install -m 0644 "$here/listen-address.so" /usr/local/lib/suite/listen-address.so
echo /usr/local/lib/suite/listen-address.so >/etc/ld.so.preload
