#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed.sh NAME FILE: the bytes of FILE as C: an array NAME of unsigned char, on a boundary of 64 bytes.
set -eu
[ $# -eq 2 ] || {
    echo "usage: embed.sh NAME FILE" >&2
    exit 2
}
[ -s "$2" ] || {
    echo "embed.sh: $2: empty or missing" >&2
    exit 1
}
cat <<TXT
/* Made from ${2##*/} by build-aux/embed.sh. */
extern const unsigned char $1[];

_Alignas(64) const unsigned char $1[] = {
TXT
od -An -v -tx1 "$2" | sed 's/ *\([0-9a-f][0-9a-f]\)/0x\1,/g'
echo '};'
