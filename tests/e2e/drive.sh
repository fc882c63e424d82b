# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # tmp is set by lib.sh
# need_drive, for tests with files on a drive. Sourced after lib.sh.

# Set drive to a directory on a drive that has O_DIRECT: that of the test, of the build, or /var/tmp.
# Skip the test if there is none.
need_drive() {
    local dir
    drive=
    for dir in "$tmp" "$PWD" /var/tmp; do
        case $(stat -f -c %T "$dir") in tmpfs | ramfs | overlayfs) continue ;; esac
        if dd if=/dev/zero of="$dir/.cistern-direct.$$" bs=4096 count=1 oflag=direct 2>/dev/null; then
            drive=$dir
        fi
        rm -f "$dir/.cistern-direct.$$"
        [ -z "$drive" ] || break
    done
    [ -n "$drive" ] || skip "no directory on a drive that has O_DIRECT"
}
