# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154,SC2034 # tmp and wait_s are lib.sh's; the others use what is set here
# Directories on drives, for tests of states in files. Sourced after lib.sh.
loops=()  # Mount points of make_loop.
frozen=() # Those that are frozen.
files=    # The directory of make_files.

# Find a directory on a drive (find_drive), or skip the test.
need_drive() {
    find_drive
    [ -n "$drive" ] || skip "no directory on a drive that has O_DIRECT"
}

# Make the directory $files on the drive, for files that have names.
make_files() {
    files=$(mktemp -d -p "$drive" cistern-files.XXXXXX)
}

# Mount a file system of $2 bytes, $3 or ext4, on a drive of its own, at $1. False: that is not possible here; no_loop says why.
make_loop() {
    local program type=${3:-ext4} force=-F
    [ "$type" = ext4 ] || force=-f
    for program in "mkfs.$type" mount umount fsfreeze; do
        command -v "$program" >/dev/null || { no_loop="no $program"; return 1; }
    done
    mkdir -p "$1"
    truncate -s "$2" "$1.image"
    "mkfs.$type" -q "$force" "$1.image" 2>"$tmp/mkfs.err" || { no_loop=$(tail -n 1 "$tmp/mkfs.err"); return 1; }
    mount -o loop "$1.image" "$1" 2>"$tmp/mount.err" || { no_loop=$(tail -n 1 "$tmp/mount.err"); return 1; }
    loops+=("$1")
}

free_blocks() {
    stat -f -c %f "$1"
}

# Writers of the file system at $1 wait in the kernel until it is thawed.
freeze() {
    fsfreeze -f "$1"
    frozen+=("$1")
}

thaw() {
    fsfreeze -u "$1"
    frozen=()
}

# Take everything down that was mounted, when the processes of the test have ended, and then the rest.
finish_drives() {
    local status=$? dir pid
    set +e
    trap '' TERM INT HUP # Who ends the test ends all its processes: what follows must not be left out.
    for dir in "${frozen[@]}"; do fsfreeze -u "$dir"; done
    for pid in "${managers[@]}"; do ! is_child "$pid" || kill -TERM "$pid" 2>/dev/null; done
    for pid in "${managers[@]}"; do wait "$pid" 2>/dev/null; done
    [ -z "$files" ] || rm -rf "$files"
    for dir in "${loops[@]}"; do umount "$dir" 2>/dev/null || umount -l "$dir"; done
    (exit "$status")
    finish
}
trap finish_drives EXIT
