#!/bin/sh
# Runs a command as the user "nobody" (the home directory is $1, the workspace $2), for `cargo xtask test --ordinary-user`.
#
# A clone may stand below a directory that only root may pass (/root, the folders of `mktemp -d`). The command then sees
# an empty directory in its place, which has nothing but the workspace.
set -e
HOME=$1 workspace=$2
shift 2
export HOME
if [ "$1" != --in-namespace ]; then
    closed=
    at=$(dirname "$workspace")
    while [ "$at" != / ]; do
        case $(stat -c %A "$at") in
        *[xt]) ;;
        *) closed=$at ;;
        esac
        at=$(dirname "$at")
    done
    if [ -n "$closed" ]; then
        exec unshare --mount "$0" "$HOME" "$workspace" --in-namespace "$closed" "$@"
    fi
else
    closed=$2
    shift 2
    here=$PWD
    exec 3<"$workspace"
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    mkdir -p "$workspace"
    mount --no-canonicalize --bind /proc/self/fd/3 "$workspace"
    exec 3<&-
    cd "$here"
fi
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"
