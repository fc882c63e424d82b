# shellcheck shell=bash disable=SC2154 # lib.sh sets tmp and wait_s
# Functions for the scripts python_torch_*.sh, each of which runs some of the test files of tests/python/torch on a private daemon: one
# process would run alone at the end of all tests. CISTERN_PYTHON is an interpreter that has torch and transformers. Sourced after lib.sh.

# The test files of each script, without test_ and .py. Each script imports torch, and those that start other processes import it for these
# once more: files that need such processes are in few scripts.
declare -rA torch_files=(
    [models]="aliases architectures arguments backward_passes between_units changes compile config containers differences disk exceptions
        fsdp_models gradients hf_states interruptions messages models modules muon nested optimizer optimizer_states origin peft planner
        ranks readers schedules store unused ways_out"
    [nodes]="several_nodes"
    [pipelines]="parallel_passes parallel_proxy parallel_refusals parallel_schedules parallel_stages parallel_store parallel_threads parallelize"
    [processes]="blocks closing dispatch dispatch_batches dispatch_faults ending example hf matrix reader_loops"
    [standby]="standby"
    [tensors]="packed_parts parallel_kinds parallel_linear parallel_memory parallel_models parallel_sequences parallel_tensor parallel_turns
        parts parts_of_models products"
)

# Skip the test unless CISTERN_PYTHON can test cistern.torch. Packages are found, not imported, which takes seconds.
torch_or_skip() {
    [ -e .libs/libcistern.so.0 ] || skip "built without a shared library"
    [ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] || skip "a sanitizer cannot be loaded into Python"
    [ -n "${CISTERN_PYTHON-}" ] || skip "CISTERN_PYTHON names no interpreter that has torch"
    "$CISTERN_PYTHON" -c 'import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, ("torch", "transformers"))))' ||
        skip "$CISTERN_PYTHON has not both torch and transformers"
}

# Print the modules of the script $1, one a line. A name without a file is printed as it is.
torch_modules() {
    local name file
    for name in ${torch_files[$1]}; do
        for file in "$srcdir"/tests/python/torch/test_$name.py; do
            file=${file##*/}
            printf '%s\n' "${file%.py}"
        done
    done
}

# Fail unless each test file belongs to exactly one script, and make runs these scripts.
check_torch_files() {
    local script differ
    for script in "${!torch_files[@]}"; do
        torch_modules "$script"
    done | sort >"$tmp/torch.modules"
    differ=$(find "$srcdir/tests/python/torch" -name 'test_*.py' -printf '%f\n' | sed 's/\.py$//' | sort | diff - "$tmp/torch.modules") ||
        fail "tests/e2e/torch.sh has not each test file (<) once, or has others (>): $differ"
    sed -n 's/^torch_scripts = //p' Makefile | tr ' ' '\n' | sort >"$tmp/torch.scripts"
    differ=$(printf 'tests/e2e/python_torch_%s.sh\n' "${!torch_files[@]}" | sort | diff - "$tmp/torch.scripts") ||
        fail "the scripts of tests/e2e/torch.sh (<) are not the torch_scripts of Makefile.am (>): $differ"
}

# Run the test files of the script $1, or, if there are more arguments, these: modules, classes and tests, as unittest takes them. They
# have a private daemon, unless CISTERN_TEST_NODES names the sockets of several.
run_torch_tests() {
    local modules
    torch_or_skip
    mapfile -t modules < <(torch_modules "$1")
    shift
    [ $# -eq 0 ] || modules=("$@")
    export srcdir CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0 PYTHONDONTWRITEBYTECODE=1 PATH=$PWD:$PATH
    export PYTHONPATH
    PYTHONPATH=$PWD/client/python/package:$(realpath "$srcdir/tests/python/torch")
    export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
    [ -n "${CISTERN_TEST_NODES-}" ] || start_daemon torch
    timeout -k 5 $((wait_s * 60)) "$CISTERN_PYTHON" -m unittest -v "${modules[@]}" 2>&1 || fail "tests of cistern.torch"
    [ -n "${CISTERN_TEST_NODES-}" ] || stop_daemon torch
}
