#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Write the layouts of all structs of the public headers, on 64-bit machines, to client/libcistern.abi, or with --check compare them with that
# file. Programs have these layouts compiled in: if one differs from those of a release, the library needs another soname.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly record=client/libcistern.abi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

die() {
    printf 'abi.sh: %s\n' "$*" >&2
    exit 1
}

# Print a C program that prints the size of each struct and, of each field, its offset, size and declaration.
program() {
    printf '#include "%s"\n' "$tmp/all.h"
    printf '%s\n' '#include <stddef.h>' '#include <stdio.h>' \
        '_Static_assert(sizeof(void *) == 8, "the layouts are those of 64-bit machines");' \
        '#define STRUCT(s) printf("\n%s: %zu bytes\n", #s, sizeof(struct s));' \
        '#define FIELD(s, f, text) printf("%5zu %4zu  %s\n", offsetof(struct s, f), sizeof((struct s *)0)->f, text);' \
        'int main(void) {'
    "${CC:-cc}" -std=gnu17 -E -P -Iinclude "$tmp/all.h" | awk '
        { text = text " " $0 }
        END {
            gsub(/[ \t]+/, " ", text)
            while (match(text, /struct cst_[a-z0-9_]+ [{][^}]*[}]/)) {
                body = substr(text, RSTART, RLENGTH - 1)
                text = substr(text, RSTART + RLENGTH)
                name = body
                gsub(/^struct | [{].*/, "", name)
                sub(/^[^{]*[{] */, "", body)
                printf "STRUCT(%s)\n", name
                n = split(body, fields, / *; */)
                for (i = 1; i < n; i++) {
                    field = fields[i]
                    gsub(/\[[^]]*\]/, "", field)
                    if (match(field, /[(][*][a-z0-9_]+[)]/)) {
                        field = substr(field, RSTART + 2, RLENGTH - 3)
                    } else if (field ~ /,/) {
                        printf "#error struct %s: a declaration of several fields: %s\n", name, fields[i]
                    } else {
                        sub(/.*[ *]/, "", field)
                    }
                    printf "FIELD(%s, %s, \"%s\")\n", name, field, fields[i]
                }
            }
        }'
    printf '}\n'
}

find include/cistern -name '*.h' | sort | sed "s|.*|#include \"$PWD/&\"|" >"$tmp/all.h"
program >"$tmp/layouts.c"
"${CC:-cc}" -std=gnu17 -Iinclude -o "$tmp/layouts" "$tmp/layouts.c" || die "the program that prints the layouts does not compile"
"$tmp/layouts" >"$tmp/now"
[ "$(grep -c '^cst_' "$tmp/now")" = "$(cat include/cistern/*.h | grep -c '^struct [a-z0-9_]* {')" ] || die "not all structs of include/cistern were found"

# libtool's numbers: current:revision:age. The soname ends with current - age.
IFS=: read -r current _ age < <(sed -n 's/^abi_version = //p' Makefile.am)
soname=$((current - age))
coming=$(sed -n 's/^## \([0-9.]*\), not yet released$/\1/p' CHANGELOG.md)
touch "$record"
read -r recorded since < <(sed -n 's/^soname \([0-9]*\), since \(.*\)$/\1 \2/p' "$record") || true
sed '1,/^soname /d' "$record" >"$tmp/before"

if ! cmp -s "$tmp/before" "$tmp/now" && [ "${recorded-}" = "$soname" ] && [ "$since" != "$coming" ]; then
    diff -U 2 "$tmp/before" "$tmp/now" >&2 || true
    die "these structs have other layouts than in $since, whose programs load libcistern.so.$soname." \
        "In Makefile.am, set abi_version to $((current + 1)):0:0. In debian/ and wherever 'git grep -E \"libcistern(-cuda)?$soname|[.]so[.]$soname\"' finds" \
        "it, the number becomes $((current + 1)). Then run build-aux/abi.sh"
fi
[ "${recorded-}" = "$soname" ] || since=${coming:?the newest version in CHANGELOG.md is released already}
{
    printf '# Structs of the public headers: offset, size and declaration of each field. build-aux/abi.sh writes this file.\n'
    printf 'soname %s, since %s\n' "$soname" "$since"
    cat "$tmp/now"
} >"$tmp/record"
if [ "${1-}" != --check ]; then
    cp "$tmp/record" "$record"
elif ! diff -U 2 "$record" "$tmp/record" >&2; then
    die "$record does not describe the public headers: run build-aux/abi.sh, and commit what it writes. Programs must be compiled again"
fi
