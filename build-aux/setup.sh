# shellcheck shell=bash
# What ./quickstart and ./runtests share: packages of Debian 12, configure, build. Sourced from the top of the source tree;
# install=no leaves the packages alone. Nothing is installed or rebuilt that is there already.

# To build and run.
# shellcheck disable=SC2034 # used by those who source this
cst_packages=(gcc g++ make libc6-dev autoconf automake libtool pkgconf xz-utils
    protobuf-c-compiler libprotobuf-c-dev libuv1-dev libhwloc-dev libinih-dev libjansson-dev libsmartcols-dev libncurses-dev liburing-dev libxxhash-dev libssl-dev libsystemd-dev libdnnl-dev check)

say() { printf '%s: %s\n' "${0##*/}" "$*"; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Seconds since the epoch, as EPOCHSECONDS but also in an old bash.
now() { date +%s; }

# Those of the packages $@ that are not installed, one a line.
missing_packages() {
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf '%s\n' "$package"
    done
}

# Have the packages $@ installed. With install=no only tell what is missing: the build says better what it cannot do without.
need_packages() {
    local missing sudo=()
    command -v dpkg-query >/dev/null || {
        say "this is not a Debian system: install these packages yourself (names as in Debian 12): $*"
        return 0
    }
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "${install:-yes}" = no ]; then
        say "not installed, and --no-install was given: ${missing[*]}"
        return 0
    fi
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "these packages are missing and there is no sudo: ${missing[*]}"
        sudo=(sudo)
    fi
    say "installing packages: ${missing[*]}"
    "${sudo[@]}" apt-get -q update || die "apt-get update failed"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" ||
        die "apt-get install failed"
}

# Make ./configure unless it is there and newer than what it is made from.
need_configure_script() {
    local source
    for source in configure.ac m4/cst_*.m4; do
        if [ ! -e configure ] || [ ! -e Makefile.in ] || [ "$source" -nt configure ]; then
            say "autoreconf"
            autoreconf -fi
            return
        fi
    done
}

# Configure the tree $1 with the arguments that follow, unless that has been done with the same arguments. configure, libtool and make run
# thousands of scripts. They would use bash, although dash, the sh of Debian, takes two thirds of its time.
need_configured() {
    local dir=$1 args
    shift
    args="CC=${CC:-} CFLAGS=${CFLAGS:-} $*"
    if [ -e "$dir/config.status" ] && [ "$(cat "$dir/.configured" 2>/dev/null)" = "$args" ]; then
        return 0
    fi
    say "configuring $dir"
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && CONFIG_SHELL=/bin/sh ../configure -q "$@") || die "configure failed: see $dir/config.log"
    printf '%s\n' "$args" >"$dir/.configured"
}

# The tree build-clang: for clang's warnings, which do not depend on optimisation.
need_clang_tree() {
    CC=clang CFLAGS=-O0 CXXFLAGS=-O0 need_configured build-clang --enable-werror --disable-static
}

# The tree build-fuzz: for libFuzzer, with what it instruments and the sanitizers that see what it finds.
need_fuzz_tree() {
    CC=clang CFLAGS="-g1 -O1" CXXFLAGS="-g1 -O1" \
        need_configured build-fuzz --enable-sanitizers=fuzzer-no-link,address,undefined --disable-static
}

# An interpreter with PyTorch, transformers and the linters of client/python in build-torch/, which is made once, with packages of PyPI.
# Sets CISTERN_PYTHON unless it is set. Fails if that cannot be had; the output then says why.
need_torch() {
    local venv=build-torch list=tests/python/torch/requirements.txt sum
    [ -z "${CISTERN_PYTHON-}" ] || return 0
    sum=$(cksum <"$list")
    if [ "$(cat "$venv/.made" 2>/dev/null)" != "$sum" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv" && "$venv/bin/pip" install -q --no-deps -r "$list" || return
        "$venv/bin/python" -c 'import torch' 2>/dev/null ||
            "$venv/bin/pip" install -q --no-deps -r "${list%.txt}-cuda.txt" || return
        "$venv/bin/python" -c 'import torch, transformers' || return
        printf '%s\n' "$sum" >"$venv/.made"
    fi
    export CISTERN_PYTHON=$PWD/$venv/bin/python
}

# The build that users get, in build/. Both scripts make the same one, so that neither has the other's made again.
build() {
    need_configure_script
    need_configured build
    make -s -C build -j"$(nproc)"
}
