#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests README.md's instructions for newcomers: its C program, built with pkg-config against an installed tree, trains with a
# daemon of that tree. Also checks the contents of the installation.
# shellcheck source=tests/e2e/lib.sh
. "${srcdir:-.}/tests/e2e/lib.sh" || exit 1
need pkg-config

root=$PWD/tests/stage # make check installs to this directory

# Each of these files exists, wherever the prefix puts it.
for file in sbin/cisternd bin/cistern libexec/cistern/cistern-engine-host libexec/cistern/cistern-rank include/cistern/cistern.h pkgconfig/cistern.pc \
    libcistern.so man8/cisternd.8 man5/cistern.conf.5 man1/cistern.1 man3/libcistern.3 system/cisternd.service system/cisternd.socket \
    system/cisternd-manager.socket user/cisternd.service system/cistern-metrics.service system/cistern-metrics.socket examples/grafana-cistern.json sysusers.d/cistern.conf tmpfiles.d/cistern.conf examples/cistern.conf examples/gpu.conf examples/mps.conf examples/nodes.conf examples/example.c \
    examples/example_cuda.c cistern/README.md cistern/LICENSE cistern/CHANGELOG.md cistern/CONTRIBUTING.md completions/cistern.bash; do
    [ -n "$(find "$root" -path "*/$file")" ] || fail "not installed: $file"
done

# All headers that programs include are in the directory include/cistern.
[ "$(find "$root" -path '*/include/*' -type d -printf '%f ')" = "cistern " ] || fail "headers are not in include/cistern alone"

# Man pages name the directories of this installation.
! grep -rqE 'SYSCONFDIR|DOCDIR' "$root" || fail "a man page does not say where the configuration or the documentation is"

# Compiled code gets directories from a header, so that it is compiled again after a configure with another prefix.
compile=$(make -n -W "$srcdir/daemon/settings/options.c" -W "$srcdir/proto/program.c" daemon/settings/options.lo proto/program.lo 2>/dev/null) ||
    fail "make does not say how it compiles"
[ "$(grep -c '^#define .* "/.*"$' dirs.h)" -eq 3 ] || fail "dirs.h has not the three directories"
while read -r dir; do
    ! grep -F -- "$dir" <<<"$compile" || fail "$dir is on the compiler's command line"
done < <(sed -n '/PREFIX/!s/^#define .* "\(.*\)"$/\1/p' dirs.h)

# Other directories than configure's are refused at once.
for other in prefix=/other libdir=/other libexecdir=/other pkglibexecdir=/other sysconfdir=/other; do
    for goal in install install-strip uninstall uninstall-am; do
        ! env -u MAKEFLAGS -u MAKELEVEL make -n $goal "$other" >"$tmp/install.log" 2>&1 || fail "make $goal $other is not refused"
        grep -q 'configured for the prefix .* run configure again' "$tmp/install.log" || fail "make $goal $other: $(cat "$tmp/install.log")"
    done
done

# Programs that link with the library can see only the names in its header.
library=$(find "$root" -name libcistern.so)
strange=$(nm -D --defined-only "$library" | awk '$2 ~ /[TDBR]/ && $3 !~ /^cst_/ && $3 !~ /^CISTERN/ { print $3 }')
[ -z "$strange" ] || fail "symbols that should be hidden: $strange"
unversioned=$(nm -D --defined-only "$library" | awk '$2 ~ /[TDBR]/ && $3 !~ /@@CISTERN_/ { print $3 }')
[ -z "$unversioned" ] || fail "symbols without a version: $unversioned"

# The first block of C in the README.
awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' "$srcdir/README.md" >"$tmp/worker.c"
[ -s "$tmp/worker.c" ] || fail "README.md has no program in C"
cmp "$tmp/worker.c" "$srcdir/client/example.c" || fail "README.md and client/example.c are not the same program"
# shellcheck disable=SC2016 # the quotes are Markdown's
for folder in $(sed -n 's/^| `tests\/` |\(.*\)|$/\1/p' "$srcdir/README.md" | grep -o '`[a-z0-9]*/`' | tr -d '`'); do
    [ -d "$srcdir/tests/$folder" ] || fail "README.md has a folder tests/$folder, the tree has not"
done
PKG_CONFIG_PATH=$(dirname "$(find "$root" -name cistern.pc)")
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR=$root
read -r -a flags < <(pkg-config --cflags --libs cistern)
# If the library was built with a sanitizer, the program must be, too.
sanitize=$(sed -n 's/^CST_SAN_CFLAGS = //p' Makefile)
# shellcheck disable=SC2086 # words
${CC:-cc} -std=c11 -Wall -Wextra -Werror $sanitize "$tmp/worker.c" "${flags[@]}" -o "$tmp/worker" >"$tmp/compile.log" 2>&1 ||
    fail "the program in README.md does not compile"

# Each header can be included alone.
while read -r header; do
    printf '#include <cistern/%s>\n' "${header##*/}" >"$tmp/alone.c"
    # shellcheck disable=SC2086 # words
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -fsyntax-only $sanitize "$tmp/alone.c" "${flags[@]}" >"$tmp/alone.log" 2>&1 ||
        fail "the header ${header##*/} does not compile alone"
done < <(find "$root" -path '*/include/cistern/*.h')

# The static library, unless configure left it out, links with the libraries that cistern.pc names.
if ./libtool --config | has '^build_old_libs=yes'; then
    read -r -a static_flags < <(pkg-config --static --cflags --libs cistern)
    # shellcheck disable=SC2086 # words
    ${CC:-cc} -std=c11 $sanitize "$tmp/worker.c" "${static_flags[@]/#-lcistern/-l:libcistern.a}" -o "$tmp/static" >"$tmp/static.log" 2>&1 ||
        fail "the program in README.md does not link with libcistern.a"
fi

# The headers work in C++ as well: it finds every name that the library exports.
if [ -z "$sanitize" ] && command -v "${CXX:-c++}" >/dev/null; then
    {
        printf '#include <cistern/cistern.h>\n#include <cistern/checkpoint.h>\n#include <cistern/comm.h>\n#include <cistern/comm_device.h>\n#include <cistern/device.h>\nint main()\n{\n    void *volatile all[] = {\n'
        sed -n 's/^    \(cst_[a-z_]*\);$/        reinterpret_cast<void *>(\&\1),/p' "$srcdir/client/libcistern.map"
        printf '    };\n    return all[0] == nullptr;\n}\n'
    } >"$tmp/all.cc"
    # shellcheck disable=SC2086 # words
    ${CXX:-c++} -Wall -Wextra -Werror "$tmp/all.cc" "${flags[@]}" -o "$tmp/all" >"$tmp/cxx.log" 2>&1 ||
        fail "a C++ program does not compile and link"
fi

# The daemon as installed. It is not under the configured prefix here, and finds the engine that was installed with it.
start installed "$(find "$root" -path '*/sbin/cisternd')" --config "$tmp/empty.conf" --socket "$CISTERN_SOCKET"
await installed READY=1
engine=$(realpath "$(find "$root" -name cistern-engine-host)")
has -F "engine $(realpath "$root")" "$tmp/installed.log" || fail "the installed daemon does not use the engine $engine"
LD_LIBRARY_PATH=$(dirname "$library") "$tmp/worker" >"$tmp/worker.log" 2>&1 || fail "the program in README.md fails"
cat "$tmp/worker.log"
stop_daemon installed
