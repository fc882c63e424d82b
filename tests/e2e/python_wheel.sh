#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the wheel and the source distribution of the Python client: `make wheel` builds them, a new virtual environment installs
# each, and the example of a worker trains there.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
[ -e .libs/libcistern.so.0 ] || skip "built without a shared library"
[ -z "$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)" ] || skip "a sanitizer cannot be loaded into Python"
need python3
python3 -m venv "$tmp/tools" >"$tmp/venv.log" 2>&1 || skip "python3 has no venv: $(tail -n 1 "$tmp/venv.log")"
"$tmp/tools/bin/pip" download -q --no-deps -d "$tmp" build >"$tmp/pip.log" 2>&1 || skip "no PyPI: $(tail -n 1 "$tmp/pip.log")"

make -s wheel >"$tmp/wheel.log" 2>&1 || fail "make wheel"
version=$(./cistern --version | awk '{ print $2 }')
wheel=client/python/dist/cistern_client-$version-py3-none-any.whl
source=client/python/dist/cistern_client-$version.tar.gz

example=$(realpath "$srcdir/client/example.py")
export CISTERN_LIBRARY=$PWD/.libs/libcistern.so.0
start_daemon wheel
for file in "$wheel" "$source"; do
    [ -e "$file" ] || fail "make wheel has not made $file"
    rm -rf "$tmp/venv"
    python3 -m venv --without-pip "$tmp/venv"
    "$tmp/tools/bin/pip" --python "$tmp/venv/bin/python" install -q "$file" >"$tmp/install.log" 2>&1 || fail "pip install $file"
    (cd "$tmp" && timeout -k 5 "$wait_s" "$tmp/venv/bin/python" "$example") >"$tmp/out" 2>&1 || fail "$file: the example: $(cat "$tmp/out")"
    grep -q '^step 3: gradient norm [0-9]' "$tmp/out" || fail "$file: the example printed: $(cat "$tmp/out")"
    ./cistern rm example >/dev/null
    [ -n "$(find "$tmp/venv" -path '*/cistern/py.typed')" ] || fail "$file: type hints are not announced (py.typed)"
    printf '%s: a worker trains\n' "$file"
done
stop_daemon wheel
