#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that the documentation is true: every option of the programs is in their man pages, the daemon accepts every key of the
# example, and every test that is named as proof of a promise exists.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1

# The help of program $1 and of all its commands.
help_of() {
    local command
    "$1" --help
    [ "$1" != ./cistern ] || "$1" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | while read -r command; do
        "$1" help "$command"
    done
}

# Print the options in the help of program $1 that are missing in its page $2.
undocumented() {
    local option
    help_of "$1" | grep -oE -- '--[a-z][a-z-]+' | sort -u | while read -r option; do
        grep -qF -- "$option" <(sed 's/\\-/-/g' "$2") || printf '%s ' "$option"
    done
}

missing=$(undocumented ./cisternd "$srcdir/daemon/cisternd.8")
[ -z "$missing" ] || fail "not in cisternd(8): $missing"
page=$(find "$srcdir/client" -name cistern.1)
[ -n "$page" ] || fail "there is no cistern(1)"
missing=$(undocumented ./cistern "$page")
[ -z "$missing" ] || fail "not in cistern(1): $missing"

if [ -x ./cistern-gpt ]; then
    missing=$(undocumented ./cistern-gpt "$srcdir/client/gpt/cistern-gpt.1")
    [ -z "$missing" ] || fail "not in cistern-gpt(1): $missing"
fi

# Every option in these pages is an option of one of the programs, or of a program of the system that a page names.
if [ -x ./cistern-gpt ]; then
    {
        help_of ./cisternd
        help_of ./cistern
        help_of ./cistern-gpt
        # systemd-sysusers, systemctl, pkg-config, cistern-engine-cuda, torchrun, srun, mpirun
        printf '%s\n' --create --now --cflags --libs --probe --user --nnodes --node-rank --master-addr --nproc-per-node --distribution --map-by
    } | grep -oE -- '--[a-z][a-z-]+' | sort -u >"$tmp/options"
    unknown=$(sed 's/\\-/-/g' "$srcdir"/daemon/*.[578] "$srcdir"/client/*.[37] "$srcdir"/client/cli/*.1 "$srcdir"/client/gpt/*.[15] |
        grep -oE -- '--[a-z][a-z-]+' | sort -u | comm -23 - "$tmp/options" | tr '\n' ' ')
    [ -z "$unknown" ] || fail "in man pages, but of no program: $unknown"
fi

# cistern-job.json(5) has every section and key of the schema, and its example is a file that cistern-gpt takes. What
# --print-config writes is read as the same options.
if [ -x ./cistern-gpt ]; then
    page=$srcdir/client/gpt/cistern-job.json.5
    grep -oE '^ {4}("[a-z]+")|^ {8}("[a-z0-9_]+")' client/gpt/cistern-job.schema.json | grep -oE '[a-z0-9_]+' | sort -u |
        grep -vxE 'type|additionalProperties|properties' | while read -r key; do
        grep -qE "^\\.BR? $key( |\$)" "$page" || fail "not in cistern-job.json(5): $key"
    done
    sed -n '/^{$/,/^}$/p' "$page" | ./cistern-gpt --config - --steps 7 --print-config >"$tmp/job.json" || fail "the example of cistern-job.json(5)"
    grep -q '"moments": "bf16"' "$tmp/job.json" || fail "the file is not read: $(cat "$tmp/job.json")"
    grep -q '"steps": 7' "$tmp/job.json" || fail "the command line does not override the file: $(cat "$tmp/job.json")"
    ./cistern-gpt --config "$tmp/job.json" --print-config | cmp - "$tmp/job.json" || fail "--print-config is not read as it was written"
fi

# libcistern(3) has every function of the library, and no other.
grep -ho '^    cst_[a-z_]*' "$srcdir"/client/libcistern.map "$srcdir"/client/libcistern-cuda.map | tr -d ' ' | sort >"$tmp/exported"
grep -o 'cst_[a-z_]*' "$srcdir/client/libcistern.3" | grep -v '^cst_\(client\|err\|try_\)$' | sort -u >"$tmp/described"
differ=$(comm -3 "$tmp/exported" "$tmp/described" | tr -d '\t' | tr '\n' ' ')
[ -z "$differ" ] || fail "libcistern(3) and the exported functions differ: $differ"

# Packages have the version of the programs, and debian/*.symbols have every exported function.
version=$(./cisternd --version | awk '{ print $2 }')
head -n 1 "$srcdir/debian/changelog" | has "^cistern ($version-" || fail "debian/changelog: another version than $version"
grep -q "^Version: *$version\$" "$srcdir/packaging/cistern.spec" || fail "packaging/cistern.spec: another version than $version"
sed -n 's/^ \(cst_[a-z_]*\)@.*/\1/p' "$srcdir"/debian/*.symbols | sort >"$tmp/packaged"
differ=$(comm -3 "$tmp/exported" "$tmp/packaged" | tr -d '\t' | tr '\n' ' ')
[ -z "$differ" ] || fail "debian/*.symbols and the exported functions differ: $differ"

# The user is warned of delayed updates.
[ ! -x ./cistern-gpt ] || ./cistern-gpt --help | tr -s ' \n' ' ' | has 'this changes the training, and was worse with AdamW' ||
    fail "cistern-gpt --help does not warn of --overlap delayed"

# The daemon accepts every key of the example with its default, and each key is in cistern.conf(5).
sed -n -e '/^\[/p' -e '/^#program/d' -e '/^#listen/d' -e 's/^#\([a-z_]* = \)/\1/p' "$srcdir/daemon/cistern.conf" >"$tmp/all.conf"
[ "$(grep -c ' = ' "$tmp/all.conf")" -ge 15 ] || fail "the example has lost its keys"
grep -o '^[a-z_]* =' "$tmp/all.conf" | while read -r key _; do
    grep -q "[B\" ]$key = " "$srcdir/daemon/cistern.conf.5" || fail "not in cistern.conf(5): $key"
done
start configured ./cisternd --config "$tmp/all.conf" --socket "$CISTERN_SOCKET" --manager-socket "$tmp/run/manager.sock"
await configured READY=1
stop_daemon configured

# The daemon refuses an unknown key, so the check above could have failed.
printf '[host]\nmemroy = 1G\n' >"$tmp/wrong.conf"
if ./cisternd --config "$tmp/wrong.conf" --socket "$CISTERN_SOCKET" >"$tmp/wrong.log" 2>&1; then
    fail "an unknown key is taken"
fi
grep -q 'wrong.conf:2:' "$tmp/wrong.log" || fail "an unknown key is refused without its line"

# The status of cisternd is 2 if its command line is wrong, and 1 if it cannot start.
for wrong in "2 --memory 1G" "2 --host-memory x" "2 extra" "1 --config $tmp/wrong.conf" "1 --config $tmp/missing.conf"; do
    status=0
    # shellcheck disable=SC2086 # Words of a command line.
    ./cisternd ${wrong#* } >"$tmp/wrong.log" 2>&1 || status=$?
    [ $status = "${wrong%% *}" ] || fail "cisternd ${wrong#* }: status $status"
    [ "$(wc -l <"$tmp/wrong.log")" = 1 ] || fail "cisternd ${wrong#* }: not one line"
done

# offload/README.md has every C file of the folder.
for file in "$srcdir"/offload/*/*.c; do
    name=${file##*/}
    grep -qE "\`${name%.c}(\.c)?\`" "$srcdir/offload/README.md" || fail "offload/README.md: no $name"
done

# Every test that FAULTS.md names is in the file that it names.
n=0
while IFS='|' read -r _ _ file names _; do
    for name in ${names//,/ }; do
        grep -qw -- "$name" "$srcdir/${file// /}" || fail "FAULTS.md: no $name in ${file// /}"
        n=$((n + 1))
    done
done < <(grep '^| .* | tests/' "$srcdir/tests/FAULTS.md")
[ "$n" -ge 80 ] || fail "FAULTS.md has lost its tests: $n are left"
