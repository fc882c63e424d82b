# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # of lib.sh and manager.sh
# Functions of tests with whole machines. Each has the files of this machine and an installed tree, and a network, processes and users of its
# own; its systemd runs the units of that tree and nothing else. What a machine writes is gone with it. Sourced after lib.sh and manager.sh.
need systemd-sysusers
need systemd-tmpfiles
need useradd
need ip
need nsenter
need runuser
rmdir "$cgroup" # Each machine has one of its own.

stage=$PWD/tests/stage # make check installs to this directory
declare -A init_of     # The first process of each machine, as it is numbered here.
mkdir "$tmp/log"

# The directory, on a machine, of the installed file that ends in $1.
installed_dir() {
    local path
    path=$(find "$stage" -path "*$1")
    [ -n "$path" ] || fail "not installed: $1"
    path=${path#"$stage"}
    printf '%s' "${path%/*}"
}
unit_dir=$(installed_dir /system/cisternd.service)
lib_dir=$(installed_dir /libcistern.so)
# shellcheck disable=SC2034 # for the caller
machine_path=$(installed_dir /sbin/cisternd):$(installed_dir /bin/cistern):/usr/sbin:/usr/bin:/sbin:/bin
export tmp stage unit_dir lib_dir manager machine_path

# Make the files of machine $1 in $tmp/$1/root, with directories of its own for what changes. In a mount namespace.
make_files() {
    local dir root=$tmp/$1/root
    mkdir -p "$tmp/$1"
    mount -t tmpfs tmpfs "$tmp/$1"
    mkdir "$tmp/$1/new" "$tmp/$1/work" "$root"
    mount -t overlay -o "lowerdir=/,upperdir=$tmp/$1/new,workdir=$tmp/$1/work" overlay "$root"
    tar -C "$stage" --exclude='*.a' -c . | tar -C "$root" -x --no-same-owner
    mount --rbind /dev "$root/dev"
    for dir in run tmp var/lib home root etc/systemd/system; do
        mount -t tmpfs tmpfs "$root/$dir"
    done
    chroot "$root" ldconfig "$lib_dir"
}

# Become the systemd of machine $1, whose daemon logs to $tmp/log/$1.log. The names of machines are in $tmp/hosts.
become_machine() {
    local target root=$tmp/$1/root units=$tmp/$1/root/etc/systemd/system
    make_files "$1"
    mkdir "$root/run/log" "$root/run/old" "$units/cisternd.service.d"
    mount --bind "$tmp/log" "$root/run/log"
    mount -t proc proc "$root/proc"
    mount --bind /proc/sys "$root/proc/sys"
    mount -o remount,bind,ro "$root/proc/sys" # A manager of a system changes settings of the kernel.
    mount -t sysfs sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    hostname "$1"
    echo "$1" >"$root/etc/hostname"
    cat "$tmp/hosts" >"$root/etc/hosts"
    for target in machine sysinit basic sockets shutdown network-online nss-lookup multi-user; do
        printf '[Unit]\nDefaultDependencies=no\n' >"$units/$target.target"
    done
    printf '[Service]\nStandardError=append:/run/log/%s.log\nEnvironment=ASAN_OPTIONS=detect_leaks=0\n' "$1" >"$units/cisternd.service.d/test.conf"
    cd "$root" || exit
    pivot_root . run/old
    umount -l /run/old
    ip link set lo up
    systemd-sysusers
    systemd-tmpfiles --create cistern.conf
    exec env -i container=test SYSTEMD_UNIT_PATH="/etc/systemd/system:$unit_dir" "$manager" --system --unit=machine.target
}
export -f make_files become_machine

# Run the shell commands $2 on machine $1 as the user $3, in the user's home.
on_machine() {
    nsenter --target "${init_of[$1]}" --mount --uts --ipc --net --pid --root --wdns=/ \
        env -i PATH="$machine_path" LC_ALL=C.UTF-8 runuser -u "$3" -- sh -c "cd ~; $2"
}

# True if the manager of machine $1 takes commands; $2 is the process of run_apart. Sets init_of.
is_booted() {
    local apart init
    apart=$(children "$2")
    [[ $apart =~ ^[0-9]+\ *$ ]] || return 1
    init=$(children "${apart% }")
    init_of[$1]=${init% }
    [ -n "${init_of[$1]}" ] && on_machine "$1" 'systemctl is-active machine.target' root >"$tmp/$1.boot" 2>&1
}

# Start machine $1.
start_machine() {
    cgroup=$cgroups/cistern-test-$$-$1
    mkdir "$cgroup"
    run_apart "become_machine $1" --uts --net --ipc >"$tmp/log/$1.console" 2>&1 &
    managers+=($!)
    poll is_booted "$1" $!
}

# Join the machines $1 and $2 by a cable between their interfaces eth1, which have the addresses in $tmp/hosts.
join_machines() {
    local name
    ip link add eth1 netns "${init_of[$1]}" type veth peer name eth1 netns "${init_of[$2]}" || fail "no veth"
    for name; do
        nsenter --target "${init_of[$name]}" --net ip addr add "$(awk -v name="$name" '$2 == name { print $1 }' "$tmp/hosts")/24" dev eth1
        nsenter --target "${init_of[$name]}" --net ip link set eth1 up
    done
}
