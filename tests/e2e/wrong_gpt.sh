#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests what a newcomer does wrong with cistern-gpt: each command has an exit status, an error with the cause and its numbers, and a remedy,
# which is tried and works (tests/e2e/wrong.sh). No job without weights remains after any of them.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
# shellcheck source=tests/e2e/wrong.sh
. "$srcdir/tests/e2e/wrong.sh"
[ -x ./cistern-gpt ] || skip "built without cistern-gpt"

write_text 200
printf hello >"$tmp/short"
printf '{}' >"$tmp/config.json"
printf '{"model": {"layer": 2}}' >"$tmp/key.json"
printf '{"model": {"layers": 2}}' >"$tmp/job.json"
small=(./cistern-gpt --layers 2 --heads 2 --width 64 --context 32 --batch 4 --threads 1 --steps 1 --quiet)
gpt=("${small[@]}" --data "$tmp/text")
# The value that the error tells to type after the words $1.
typed() {
    sed -n "s/.*$1 \\([0-9]*%*\\).*/\\1/p" "$tmp/err"
}
start_daemon d

# -- the text --

wrong 2 '--data FILE is missing: name a text to learn' "${small[@]}"
remedy "${gpt[@]}"
wrong 2 "^cistern-gpt: --data: file '$tmp/txt': No such file or directory: name a file with text that you can read\$" "${small[@]}" --data "$tmp/txt"
remedy "${gpt[@]}"
wrong 2 'not a regular file: name one with text' "${small[@]}" --data "$tmp"
remedy "${gpt[@]}"
wrong 2 'has 5 bytes; one sequence of context 32 and its targets need 33: give a longer text, or a shorter --context' "${small[@]}" --data "$tmp/short"
remedy "${small[@]}" --data "$tmp/short" --context 4 --job short
wrong 2 'which is no whole number of tokens of 4 bytes: name the form of the file \(--tokens bytes, uint16 or uint32\)' \
    "${small[@]}" --data "$tmp/short" --tokens uint32 --context 1
remedy "${small[@]}" --data "$tmp/short" --tokens bytes --context 4 --job short
wrong 2 'token [0-9]* is [0-9]*, the vocabulary has 64: give --vocab [0-9]* or more' "${gpt[@]}" --vocab 64 --job words
./cistern rm words # The first step has found the token.
remedy "${gpt[@]}" --vocab 128 --job words
wrong 2 "--validate 0.01%: of the [0-9]* bytes of .*, 0 are for validation .* both need at least 33: give a larger share" "${gpt[@]}" --validate 0.01%
remedy "${gpt[@]}" --validate 5%
wrong 2 "--validate: file '$tmp/txt': No such file" "${gpt[@]}" --validate "$tmp/txt"
remedy "${gpt[@]}" --validate "$tmp/text"

# -- sizes --

wrong 2 '--width 64 is not divisible by --heads 3: --width 96 is' "${gpt[@]}" --heads 3
remedy "${gpt[@]}" --heads 3 --width 96 --job heads
wrong 2 '--width 64 / --heads 8 = 8 elements per head: it must be a multiple of 16, as with --width 128' "${gpt[@]}" --heads 8
remedy "${gpt[@]}" --heads 8 --width "$(typed --width)" --job wide
wrong 2 "--layers: '0' is not a number from 1 to 4096" "${gpt[@]}" --layers 0
remedy "${gpt[@]}" --layers 1 --job layer
wrong 2 "--batch: '0' is not a number from 1 to 65536" "${gpt[@]}" --batch 0
remedy "${gpt[@]}" --batch 1
wrong 2 '--batch 5 is not divisible by --micro-batches 2: --batch 6 is' "${gpt[@]}" --batch 5 --micro-batches 2
remedy "${gpt[@]}" --batch "$(typed ': --batch')" --micro-batches 2 --job micro
wrong 1 'pool of 1000 bytes: .* short; a pool of .*% of the job.s weights, is enough' "${gpt[@]}" --pool 1000 --job pool
remedy "${gpt[@]}" --pool "$(typed 'bytes),')" --job pool
wrong 2 "--pool: 'lots' is not a size \\(write 4096, 64K, 1.5G or 1.5GiB, or a percentage such as 40%\\)" "${gpt[@]}" --pool lots
remedy "${gpt[@]}" --pool 110% --job percent
wrong 2 '--top-k 3 is more than --experts 2: at most --top-k 2' "${gpt[@]}" --experts 2 --top-k 3
remedy "${gpt[@]}" --experts 2 --top-k 2 --job experts
wrong 2 "--optimizer: 'adamm' is none of adamw, adam, lion, sgd, muon" "${gpt[@]}" --optimizer adamm
remedy "${gpt[@]}" --optimizer adamw

# -- ranks --

wrong 2 'there is no option --ranks: did you mean --rank\?' "${gpt[@]}" --ranks 2
remedy "${gpt[@]}" --rank 0
wrong 2 '--rank 2 with --world 2: the ranks are 0 to 1; for more, --world 3' "${gpt[@]}" --world 2 --rank 2
remedy ./cistern run -n 3 -- "${gpt[@]}" --job ranks
wrong 2 "environment variable LOCAL_RANK: 'x' is not a number from 0 to 511" env LOCAL_RANK=x "${gpt[@]}"
remedy env LOCAL_RANK=0 "${gpt[@]}"
wrong 1 "has 8 ranks, of which 1 are on this node, and this daemon has no links to others: set 'listen' in \[node\]" \
    env LOCAL_WORLD_SIZE=1 WORLD_SIZE=8 RANK=3 "${gpt[@]}" --job nodes
remedy env LOCAL_WORLD_SIZE=1 WORLD_SIZE=1 "${gpt[@]}" --job nodes

# -- parallelism --

wrong 2 '--parallel dispatch needs --micro-batches 2 or more' "${gpt[@]}" --parallel dispatch
remedy "${gpt[@]}" --parallel dispatch --micro-batches 2 --job dispatch
wrong 2 '--stages 5 is more than --layers 2: .* at most --stages 2' "${gpt[@]}" --parallel dispatch --micro-batches 2 --stages 5
remedy "${gpt[@]}" --parallel dispatch --micro-batches 2 --stages 2 --job stages
wrong 2 'it has 4 stages, and --layers 2: .* give fewer ranks or stages, or more layers' "${gpt[@]}" --parallel pipeline --micro-batches 2 --world 4
remedy ./cistern run -n 2 -- "${gpt[@]}" --parallel pipeline --micro-batches 2 --job pipeline
wrong 2 '--parallel auto is for cistern plan .* cistern-gpt can do data, dispatch and pipeline' "${gpt[@]}" --parallel auto
remedy "${gpt[@]}" --parallel data
wrong 2 '--parallel pipeline cannot be combined with --experts' "${gpt[@]}" --parallel pipeline --micro-batches 2 --experts 2
remedy "${gpt[@]}" --parallel data --micro-batches 2 --experts 2 --job mixture
wrong 2 '--schedule gpipe needs --parallel pipeline' "${gpt[@]}" --schedule gpipe
remedy "${gpt[@]}" --schedule gpipe --parallel pipeline --micro-batches 2 --job gpipe
wrong 2 "--schedule gpip: no schedule 'gpip'; there are gpipe, 1f1b, .*, and no such file" "${gpt[@]}" --schedule gpip --parallel pipeline --micro-batches 2
remedy "${gpt[@]}" --schedule 1f1b --parallel pipeline --micro-batches 2 --job 1f1b

# -- the job --

remedies_before=$n_remedies
remedy "${gpt[@]}" --job one
n_remedies=$remedies_before
wrong 1 "job 'one' was opened with another model: its model_config has n_embd 64, not 128 as rank 0 has.* remove it: cistern rm one" \
    "${gpt[@]}" --job one --width 128
remedy "${gpt[@]}" --job two --width 128
wrong 1 "job 'one' was opened with masters fp32, not split as rank 0 wants.*, or --reshape, which changes the job" "${gpt[@]}" --job one --masters split
remedy "${gpt[@]}" --job one --masters split --reshape --steps 2
wrong 1 "job 'one' was opened with optimizer adamw, not lion .* remove it: cistern rm one" "${gpt[@]}" --job one --optimizer lion
said cistern rm one
wrong 2 "name 'a b': the name of a job has 1 to 63 characters" "${gpt[@]}" --job 'a b'
remedy "${gpt[@]}" --job a.b
wrong 1 "no daemon listens at $tmp/x.sock: start one with 'cisternd --socket $tmp/x.sock'" "${gpt[@]}" --socket "$tmp/x.sock"
remedy "${gpt[@]}" --socket "$CISTERN_SOCKET"
wrong 1 "device 'gpu' is none of auto, host, cuda" "${gpt[@]}" --device gpu
remedy "${gpt[@]}" --device host
wrong 1 "base of job 'adapter': uid [0-9]* has no job 'nobody' \\(cistern jobs\\)" "${gpt[@]}" --job adapter --base nobody --lora 2
said cistern jobs
wrong 1 "there is no plan in $tmp/none: 'cistern plan --save FILE' makes one" "${gpt[@]}" --plan "$tmp/none"
remedy ./cistern plan preset:gpt2-124m --rates a100 --save "$tmp/plan"
wrong 1 "--config $tmp/none: no such file: 'cistern-gpt --print-config' writes one" "${gpt[@]}" --config "$tmp/none"
said cistern-gpt --print-config
wrong 2 "key.json:1: section model, layer: there is no such key: did you mean 'layers'\\?" "${gpt[@]}" --config "$tmp/key.json"
remedy "${gpt[@]}" --config "$tmp/job.json"

# -- checkpoints --

remedies_before=$n_remedies
remedy "${gpt[@]}" --job saved
remedy ./cistern save saved "$tmp/saved"
n_remedies=$remedies_before
wrong 1 "nowhere: No such file or directory: name a directory to which jobs were saved" "${gpt[@]}" --job resumed --resume "$tmp/nowhere"
remedy "${gpt[@]}" --job resumed --resume "$tmp/saved"
wrong 1 'there is no whole checkpoint: name a directory to which jobs were saved' "${gpt[@]}" --job again --resume "$tmp"
remedy "${gpt[@]}" --job again --resume "$tmp/saved"
wrong 1 "tensor 'wte' has the shape 256x64 in the checkpoint and 256x128 in the job: give the job the sizes" \
    "${gpt[@]}" --job width --resume "$tmp/saved" --width 128
remedy "${gpt[@]}" --job width --resume "$tmp/saved" --width 64
wrong 1 'the checkpoint is of optimizer adamw, the job of lion: give the job adamw' "${gpt[@]}" --job lion --resume "$tmp/saved" --optimizer lion
remedy "${gpt[@]}" --job lion --resume "$tmp/saved" --optimizer adamw
cp -r "$tmp/saved" "$tmp/torn"
truncate -s -1 "$tmp"/torn/step-*/model.safetensors
wrong 2 'model.safetensors is torn: it has [0-9]* bytes of [0-9]*' "${gpt[@]}" --job torn --resume "$tmp"/torn/step-*
remedy "${gpt[@]}" --job torn --resume "$tmp/saved"
wrong 2 '--resume auto needs --save-dir DIR' "${gpt[@]}" --job auto --resume auto
remedy "${gpt[@]}" --job auto --resume auto --save-dir "$tmp/auto"
wrong 2 '--save-every needs --save-dir DIR' "${gpt[@]}" --save-every 1
remedy "${gpt[@]}" --job every --save-every 1 --save-dir "$tmp/every"
wrong 1 "--save-dir .* has checkpoints of job 'saved': job 'other' needs a directory of its own" "${gpt[@]}" --job other --save-every 1 --save-dir "$tmp/saved"
remedy "${gpt[@]}" --job other --save-every 1 --save-dir "$tmp/other"
wrong 2 "--save-dir '$tmp/text/x': no file can be made in $tmp/text/x: Not a directory: name a directory that you can write" \
    "${gpt[@]}" --job unsaved --save-every 1 --save-dir "$tmp/text/x"
remedy "${gpt[@]}" --job unsaved --save-every 1 --save-dir "$tmp/x"
# A run whose last checkpoint is missing is no success, and the job can still be saved.
wrong 1 "^cistern-gpt: the last checkpoint, after step 1, is missing\\. Job 'full' keeps its states: save them with 'cistern save full DIR'\$" \
    bash -c 'trap "" XFSZ; ulimit -f 1; exec "$@"' - "${gpt[@]}" --job full --save-every 1 --save-dir "$tmp/full"
remedy ./cistern save full "$tmp/full"
wrong 1 "--init: there is no $tmp/nowhere/config.json: name a directory with config.json and model.safetensors of a GPT-2" \
    "${gpt[@]}" --init "$tmp/nowhere" --job init
remedy "${gpt[@]}" --job init
wrong 2 'config.json: n_layer is missing or not a size: give the files of a GPT-2' "${gpt[@]}" --init "$tmp" --job inits
remedy "${gpt[@]}" --job inits

# -- what it writes --

for option in --log-json --loss-file --dump-weights --dump-logits --dump-grads; do
    wrong 2 "$option '$tmp/none/x': no file can be made in $tmp/none: No such file or directory: name one in a directory that exists" \
        "${gpt[@]}" --job "write$option" "$option" "$tmp/none/x"
    remedy "${gpt[@]}" --job "write$option" "$option" "$tmp/x$option"
done
wrong 2 "--loss-file '$tmp' is a directory: name a file in it" "${gpt[@]}" --job dir --loss-file "$tmp"
remedy "${gpt[@]}" --job dir --loss-file "$tmp/losses"
mkdir -m 555 "$tmp/locked"
chmod 755 "$tmp"
user=()
[ "$(id -u)" != 0 ] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
if "${user[@]}" ./cistern-gpt --version >/dev/null 2>&1; then # It can read this build.
    wrong 2 "--describe '$tmp/locked/m': no file can be made in $tmp/locked: Permission denied: name one in a directory that exists and that you can write" \
        "${user[@]}" "${small[@]}" --describe "$tmp/locked/m"
    remedy "${user[@]}" "${small[@]}" --describe -
fi

# Nothing has left a job without weights: each that there is has made a step.
[ "$(./cistern jobs --json | grep -cE '"step": [1-9]')" -ge 20 ] || fail "jobs are missing: $(./cistern jobs)"
! ./cistern jobs --json | has '"step": 0' || fail "a job without steps remains: $(./cistern jobs)"
all_tried 50
