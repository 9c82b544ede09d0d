#!/bin/sh
# Runs a command as the user "nobody", for `cargo xtask test --ordinary-user`: as_ordinary_user.sh HOME WORKSPACE CLOSED
# COMMAND...
#
# CLOSED is the outermost directory above the workspace that only root may pass, such as /root or a folder of
# `mktemp -d`; "-" if there is none. The command sees an empty directory in its place, with nothing but the workspace.
set -e
HOME=$1 workspace=$2 closed=$3
export HOME
if [ "$closed" != - ]; then
    if [ -z "$QUELL_IN_NAMESPACE" ]; then
        QUELL_IN_NAMESPACE=1 exec unshare --mount "$0" "$@"
    fi
    unset QUELL_IN_NAMESPACE
    here=$PWD
    exec 3<"$workspace"
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    mkdir -p "$workspace"
    mount --no-canonicalize --bind /proc/self/fd/3 "$workspace"
    exec 3<&-
    cd "$here"
fi
shift 3
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"
