#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Put the line that names the licence into every source file that lacks it, or with --check only list such files, and fail if there are any.
# Programs in client/example* are there to be copied, and have none.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly id='SPDX-License-Identifier: Apache-2.0'

# The line as a comment in the language of the file $1; nothing for a file that is no source.
comment_for() {
    case $1 in
    client/example*) ;;
    *.c | *.h) printf '/* %s */' "$id" ;;
    *.cu | *.cuh | *.cpp | *.hpp | *.proto) printf '// %s' "$id" ;;
    *.ac | *.m4) printf 'dnl %s' "$id" ;;
    *.[1-8]) printf '.\\" %s' "$id" ;;
    *.am | *.bash | *.py) printf '# %s' "$id" ;;
    *) ! head -n 1 "$1" | grep -aq '^#!' || printf '# %s' "$id" ;; # a script
    esac
}

# The first line of a file, or the one behind "#!" and behind what tells man which preprocessor a page wants.
insert() {
    case $(head -c 3 "$1" | tr -d '\0') in
    '#!'* | "'\\\"") sed -i "1a $2" "$1" ;;
    *) sed -i "1i $2" "$1" ;;
    esac
}

# The regular files of the tree. One that git knows may have been removed.
sources() {
    local file
    if [ -d .git ] || [ -f .git ]; then
        git ls-files
    else
        find . -type f ! -path './build*' -printf '%P\n'
    fi | while read -r file; do
        [ ! -f "$file" ] || [ -L "$file" ] || printf '%s\n' "$file"
    done
}

# Print those of the files on the input that do not have the line among their first three. Empty files are left out.
without() {
    # shellcheck disable=SC2016 # awk expands it
    xargs -d '\n' awk -v id="$id" '
        FNR == 1 { if (file != "" && !has) print file; file = FILENAME; has = 0 }
        index($0, id) { has = 1 }
        FNR == 3 { nextfile }
        END { if (file != "" && !has) print file }'
}

files=$(sources | without)
lacking=0
while read -r file; do
    comment=
    [ -z "$file" ] || comment=$(comment_for "$file")
    [ -n "$comment" ] || continue
    lacking=$((lacking + 1))
    if [ "${1-}" = --check ]; then
        printf '%s\n' "$file"
    else
        insert "$file" "${comment//\\/\\\\}"
    fi
done <<<"$files"
[ "${1-}" != --check ] || [ "$lacking" -eq 0 ]
