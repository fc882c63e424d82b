#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the script tests/gpu/run itself without a GPU: its message if there is no GPU, its handling of stages that fail, hang or
# miss a goal, and that every stage which can run on the stand-in driver passes there.
# shellcheck source=tests/e2e/lib.sh disable=SC2016 # what is pretended expands later
. "${srcdir:-.}/tests/e2e/lib.sh"
unset OUT
build=$PWD
scripts=$(cd "$srcdir/tests/gpu" && pwd)
fakecuda=$build/tests/lib/fakecuda/.libs:$build/tests/lib/fakenccl/.libs
[ -e "${fakecuda%%:*}/libcuda.so.1" ] || skip "built without CUDA"
[ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] || skip "built with a sanitizer: the script is what is tested here"

# Usage: a list of the stages without a GPU, and wrong options.
"$scripts/run" --list >"$tmp/list"
grep -q '^kernels ' "$tmp/list" || fail "--list does not list"
status=0
"$scripts/run" --only kernels,nonsense >"$tmp/usage.log" 2>&1 || status=$?
[ $status = 2 ] || fail "a stage that is none: status $status"
grep -q "'nonsense'" "$tmp/usage.log" || fail "a stage that is none is not named"

# Without a GPU the script prints one line and exits with status 77.
if ! ldconfig -p | grep 'libcuda\.so\.1' >"$tmp/driver"; then
    status=0
    "$scripts/run" --out "$tmp/none" >"$tmp/none.log" 2>&1 || status=$?
    [ $status = 77 ] || fail "without a GPU: status $status"
    [ "$(wc -l <"$tmp/none.log")" = 1 ] || fail "without a GPU: not one line"
    grep -q '^no GPU here: no NVIDIA driver' "$tmp/none.log" || fail "without a GPU: not said why"
fi

# A tree of programs that only print results.
tree=$tmp/tree
mkdir -p "$tree/tests/gpu"
cp "$scripts"/{run,*.sh,table.awk} "$tree/tests/gpu/"
pretend() {
    printf '#!/usr/bin/env bash\n%s\n' "$2" >"$tree/$1"
    chmod +x "$tree/$1"
}
pretend cisternd 'exit 1'
pretend cistern-engine-cuda \
    'echo "{\"gpus\": [{\"index\": 0, \"uuid\": \"GPU-0\", \"name\": \"A Card\", \"memory_bytes\": 80000000000}], \"driver\": 13000}"'
pretend tests/gpu/check_kernels 'while [ $# -gt 1 ]; do shift; done
    echo "{\"copy on the card\": {\"ms\": 1, \"gb_per_s\": 4000.0}, \"adamw\": {\"ms\": 1, \"gb_per_s\": 3000.0}, \"ok\": true}" >"$1"'
pretend tests/gpu/check_attention 'echo "the \"third\" number differs"; exit 3'
pretend tests/gpu/check_worker 'sleep 100'
pretend tests/gpu/bench_copy \
    'echo "{\"name\": \"copy_up\", \"value\": 54, \"unit\": \"GB/s\", \"yardstick\": 55, \"ratio\": 0.98}" >"$2"'
status=0
"$tree/tests/gpu/run" --only kernels,attention,gpt,copy --budget 12 --out "$tmp/pretended" >"$tmp/pretended.log" 2>&1 || status=$?
[ $status = 1 ] || fail "stages that fail: status $status"
table=$tmp/pretended/table.txt
says() {
    grep -q "$1" "$table" || { cat "$table" "$tmp/pretended.log"; fail "the table does not say '$1'"; }
}
says '^A Card, driver 13000'
says '^  kernels  *passed'
says '^  attention  *FAILED .*the third number differs$'
says '^  gpt  *FAILED .*not done in [0-9]* s$'
says '^  copy  *skipped .*no time was left'
says 'kernel_adamw .*3000 .*0\.750 .*MISSED'
says '^1 stages passed, 2 failed, 1 skipped; 1 goals missed'
grep -q '^{"name": "kernel_adamw", .*"goal": "ratio >= 0.90", "met": false}$' "$tmp/pretended/gpu.jsonl" || fail "gpu.jsonl: no goal"
"$tree/tests/gpu/run" --only copy --out "$tmp/pretended" >"$tmp/pretended.log" 2>&1 || fail "a goal that is met: failed"
says 'copy_up .*0\.980 .*: met$'

# With the stand-in driver every stage that is built must pass.
status=0
LD_LIBRARY_PATH=$fakecuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$scripts/run" --quick --budget $((20 * wait_s)) --out "$tmp/quick" \
    >"$tmp/quick.log" 2>&1 || status=$?
cat "$tmp/quick.log"
[ $status = 0 ] || { tail -n 60 "$tmp/quick/log.txt"; fail "on the stand-in driver: status $status"; }
table=$tmp/quick/table.txt
says '^  experiments  *passed'
says '^  copy  *passed'
says '^  nccl  *skipped .*needs two cards'
says '^  edges  *skipped .*need two cards'
if ./cistern-gpt --help >/dev/null 2>&1; then
    says '^  bits  *passed'
    says '^  e2e  *passed'
    says '^  whole  *passed'
    says '^  copies  *passed'
    says '^  reservations  *passed'
    says '^  size  *passed'
fi

# With two cards, one rank has each.
status=0
LD_LIBRARY_PATH=$fakecuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CST_FAKECUDA_DEVICES=2 "$scripts/run" --quick --only cards,nccl,edges --out "$tmp/cards" \
    >"$tmp/cards.log" 2>&1 || status=$?
[ $status = 0 ] || { tail -n 60 "$tmp/cards/log.txt"; fail "one rank per card: status $status"; }
[ -x ./cistern-gpt ] && stages='cards nccl edges' || stages='nccl edges'
for stage in $stages; do
    grep -q "^  $stage  *passed" "$tmp/cards/table.txt" || fail "one rank per card: $(cat "$tmp/cards/table.txt")"
done

if awk 'length > 100 || NR > 60 { exit 0 } END { exit 1 }' "$table"; then
    fail "the table is too wide or too long"
fi
