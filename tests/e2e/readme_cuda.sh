#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests README.md's statements about programs that use a GPU: client/example_cuda.c, built with pkg-config against an installed
# tree and with the toolkit's header, trains with a daemon of that tree and has the numbers of README.md's C program. The driver
# is tests/lib/fakecuda.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need pkg-config

cuda=$(sed -n 's/^CUDA_DIR = //p' Makefile)
fake=$PWD/tests/lib/fakecuda/.libs
root=$PWD/tests/stage # make check installs to this directory
for file in include/cistern/cuda.h include/cistern/device.h pkgconfig/cistern-cuda.pc libcistern-cuda.so \
    libexec/cistern/cistern-engine-cuda; do
    [ -n "$(find "$root" -path "*/$file")" ] || fail "not installed: $file"
done

# The library exports the names in its header, each with a version, and needs no driver to start.
library=$(find "$root" -name libcistern-cuda.so)
sed -n 's/^    \(cst_[a-z_]*\);$/\1/p' "$srcdir/client/libcistern-cuda.map" | sort >"$tmp/names"
[ -s "$tmp/names" ] || fail "libcistern-cuda.map has no names"
nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sort | cmp - <(sed 's/$/@@CISTERN_CUDA_0.1/' "$tmp/names") ||
    fail "libcistern-cuda.so exports something else than libcistern-cuda.map says"
while read -r name; do
    grep -q "\b$name(" "$srcdir/include/cistern/cuda.h" || fail "$name is not in cistern/cuda.h"
done <"$tmp/names"
for file in "$library" "$(find "$root" -name cistern-engine-cuda)" "$(find "$root" -path '*/sbin/cisternd')"; do
    ! readelf -d "$file" | has 'NEEDED.*libcu' || fail "$file is linked with CUDA"
done
! readelf -d "$(find "$root" -path '*/sbin/cisternd')" | has 'NEEDED.*cistern-cuda' || fail "the daemon is linked with libcistern-cuda"

awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$srcdir/README.md" >"$tmp/host.c"
cp "$srcdir/client/example_cuda.c" "$tmp/worker.c"
PKG_CONFIG_PATH=$(dirname "$(find "$root" -name cistern-cuda.pc)")
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR=$root
sanitize=$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)
# $1: name of the program; $2...: further arguments of the compiler.
build() {
    local name=$1
    shift
    # shellcheck disable=SC2086 # words
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror $sanitize "$tmp/$name.c" -isystem "$cuda/include" "$@" >"$tmp/$name.compile.log" 2>&1 ||
        fail "$name.c does not compile: $*"
}
read -r -a flags < <(pkg-config --cflags --libs cistern-cuda)
build host "${flags[@]}" -o "$tmp/host"
build worker "${flags[@]}" -L"$fake" -lcuda -o "$tmp/worker"
if ./libtool --config | has '^build_old_libs=yes'; then
    read -r -a static < <(pkg-config --static --cflags --libs cistern-cuda)
    static=("${static[@]/#-lcistern-cuda/-l:libcistern-cuda.a}")
    static=("${static[@]/%-lcistern/-l:libcistern.a}")
    build worker "${static[@]}" -L"$fake" -lcuda -o "$tmp/static"
    ! readelf -d "$tmp/static" | has 'NEEDED.*cistern' || fail "the static program needs a shared library of cistern"
fi
if [ -z "$sanitize" ] && command -v "${CXX:-c++}" >/dev/null; then
    printf '#include <cistern/cuda.h>\nint main() { return cst_cuda_available(nullptr) == 1; }\n' >"$tmp/all.cc"
    ${CXX:-c++} -Wall -Wextra -Werror "$tmp/all.cc" "${flags[@]}" -o "$tmp/all" >"$tmp/cxx.log" 2>&1 ||
        fail "a C++ program does not compile and link"
fi

export LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CST_FAKECUDA_STATE=$tmp
start installed "$(find "$root" -path '*/sbin/cisternd')" --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET" \
    --engine "$(find "$root" -name cistern-engine-host)" --engine-cuda "$(find "$root" -name cistern-engine-cuda)"
await installed READY=1
export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:${library%/*}
"$tmp/host" >"$tmp/host.log" 2>&1 || fail "the program in README.md fails"
"$tmp/worker" >"$tmp/worker.log" 2>&1 || fail "client/example_cuda.c fails"
cmp "$tmp/host.log" "$tmp/worker.log" || fail "the GPU's numbers are not the host's"
if [ -e "$tmp/static" ]; then
    ./cistern rm example-cuda >"$tmp/rm.log" 2>&1 || fail "cistern rm fails"
    "$tmp/static" >"$tmp/static.log" 2>&1 || fail "the static program fails"
    cmp "$tmp/host.log" "$tmp/static.log" || fail "the static program's numbers are not the host's"
fi
cat "$tmp/worker.log"
stop_daemon installed
