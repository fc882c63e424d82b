#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that README.md and the guides in docs/ are true: their pictures are those of the recorded figures, their links lead somewhere, the
# tables of errors have every status and reason, and every command of them is typed here, or in the test that is named here.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
srcdir=$(realpath "$srcdir")
mapfile -t pages < <(printf '%s\n' "$srcdir/README.md" "$srcdir/client/python/README.md" && find "$srcdir/docs" -name '*.md' | sort)

# -- pictures and links ---------------------------------------------------------------------------

need python3
python3 "$srcdir/docs/pictures/draw" "$tmp"
cmp "$tmp/figures.svg" "$srcdir/docs/pictures/figures.svg" || fail "figures.svg is not made of figures.tsv: run docs/pictures/draw"
for page in "${pages[@]}"; do
    { grep -oE '\]\([^)#]+' "$page" || true; } | cut -c3- | { grep -vE '^https?:' || true; } | while read -r link; do
        [ -e "${page%/*}/$link" ] || fail "$page: no file $link"
    done
done
[ "$(wc -l <"$srcdir/README.md")" -le 130 ] || fail "README.md has more than 130 lines"
! command -v sphinx-build >/dev/null || sphinx-build -q -W -b html "$srcdir/docs" "$tmp/html" || fail "Sphinx does not like docs/"

# -- errors ---------------------------------------------------------------------------------------

# The rows of the table CST_$1_MAP, as Markdown begins them.
rows_of() {
    # shellcheck disable=SC2016 # the quotes are Markdown's
    sed -n "/define CST_$1_MAP/,/^\$/p" "$srcdir/include/cistern/status.h" | sed -nE 's/^ +X\((\w+), [^"]*"(.*)"\).*/| `\1` | \2 |/p'
}
rows=$(rows_of STATUS | grep -v '^| .OK. |'; rows_of REASON | grep -v '^| .NONE. |')
[ "$(wc -l <<<"$rows")" -gt 35 ] || fail "no statuses found"
while read -r row; do
    grep -qF -- "$row" "$srcdir/docs/troubleshoot.md" || fail "docs/troubleshoot.md has no row: $row"
done <<<"$rows"

# -- commands -------------------------------------------------------------------------------------

[ -x ./cistern-gpt ] || skip "built without cistern-gpt"
mkdir "$tmp/bin" "$tmp/work"
for program in cistern cistern-gpt; do
    printf '#!/bin/sh\nexec "%s/%s" "$@"\n' "$PWD" $program >"$tmp/bin/$program"
    chmod +x "$tmp/bin/$program"
done
find_drive
write_text 300
printf '{"name": "small", "world": 1, "tensors": [{"name": "a", "shape": [512, 512]}], "operators": [{"name": "x", "tensors": ["a"], "flops": 1e9}]}' >"$tmp/work/model.json"
printf 'import sys\n' >"$tmp/work/train.py"
# What cistern probe would measure.
cat >"$tmp/rates.json" <<'RATES'
{"devices": [{"name": "host", "memory_bytes": 8589934592, "up": 1e9, "down": 1e9, "memory": 2e10, "flops": 3e11}],
 "nodes": [{"cores": 2, "memory_bytes": 8589934592, "pass": 2e10, "update": 5e8, "reduce": 3e9, "copy": 1e9, "products": 1e10}],
 "disk_read": 2e9, "disk_write": 1.5e9, "disk_mixed": 1.7e9, "request_s": 3e-5}
RATES
small=(--layers 2 --heads 2 --width 32 --context 16 --batch 2 --threads 1 --seed 7 --steps 2 --data "$tmp/text")

# Where a command is typed that another test types: its beginning, and a pattern of that test.
elsewhere() {
    case $1 in
    'cistern stat --watch') echo 'cli.sh stat --watch' ;;
    'cistern probe' | 'cistern probe --disk'*) echo 'cli.sh probe -o' ;;
    'cistern metrics'*) echo 'metrics.sh cistern metrics --listen' ;;
    'cistern quota --manager-socket'*) echo 'cluster.sh cistern quota' ;;
    'cistern drain --wait' | 'cistern drain --save /'*) echo 'safe.sh drain --wait' ;;
    'cistern top') echo 'top.sh top' ;;
    'cistern node list') echo 'links.sh node list' ;;
    'cistern adopt '*) echo 'durable.sh cistern adopt' ;;
    'cistern clone '*) echo 'clone.sh cistern clone' ;;
    'cistern pause '*) echo 'pause.sh cistern pause paused --release-pools' ;;
    'cistern resume '*) echo 'pause.sh cistern resume paused --wait' ;;
    'cistern drain --save DIR') echo 'revival.sh cistern drain --save' ;;
    'cistern checkpoints --check'*) echo 'checkpoint.sh --check --json' ;;
    *--durable*) echo 'durable.sh --durable' ;;
    esac
}

# What has to be there before the command $1 is typed.
prepare() {
    case $1 in
    'cistern-gpt '*--reshape*)
        ./cistern rm run7 >/dev/null 2>&1 || true
        ./cistern-gpt "${small[@]}" --job run7 >"$tmp/prepared.log" 2>&1 || fail "a job"
        ;;
    'cistern '*run7*)
        ./cistern job run7 >/dev/null 2>&1 || ./cistern-gpt "${small[@]}" --job run7 >"$tmp/prepared.log" 2>&1 || fail "a job"
        ;;
    esac
}

# Type the command $1 of a page, with what this machine has in the place of drives and models.
typed() {
    local command=$1
    prepare "$1"
    command=${command//preset:opt-30b --disk/preset:opt-30b --device 4G --rates $tmp/rates.json --disk}
    command=${command//model.json/model.json --rates $tmp/rates.json}
    command=${command//...*/"${small[*]}"}
    command=${command//--data text/"${small[*]}"}
    command=${command// \/checkpoints/ $tmp\/checkpoints}
    command=${command//--world 2 --rank 0 --batch 12/--batch 2}
    command=${command//\/mnt\/nvme[0-9],\/mnt\/nvme[0-9]/$drive}
    (cd "$tmp/work" && PATH=$tmp/bin:$PATH SLURM_JOB_ID=7 timeout 120 bash -c "$command") >"$tmp/typed.log" 2>&1 </dev/null ||
        fail "the command '$1' of a page, typed as '$command': $(tail -n 5 "$tmp/typed.log")"
}

start_daemon keeper
./cistern-gpt "${small[@]}" --job run7 >"$tmp/run7.log" 2>&1 || fail "a first job"
mapfile -t commands < <(grep -hE '^    (cistern|cistern-gpt) ' "${pages[@]}" | sed -E 's/^ +//; s/ +#.*//' | sort -u)
[ ${#commands[@]} -gt 8 ] || fail "the pages have ${#commands[@]} commands"
for command in "${commands[@]}"; do
    read -r test pattern < <(elsewhere "$command") || true
    if [ -n "${test-}" ]; then
        grep -qF -- "$pattern" "$srcdir/tests/e2e/$test" || fail "$test does not type '$command'"
    else
        typed "$command"
    fi
    test=
done
printf '%d commands of %d pages\n' ${#commands[@]} ${#pages[@]}
stop_daemon keeper
