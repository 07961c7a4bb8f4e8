#!/bin/sh
# Compiles listen-address.c, which lies beside this file, to listen-address.so in the same folder. Takes further options of gcc.
set -eu
cd "$(dirname "$0")"
gcc -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror "$@" -o listen-address.so listen-address.c -ldl
