/* SPDX-License-Identifier: Apache-2.0 */
/* disk_engine: cistern-engine-host whose drives (--disk) fail, record or wait, as the environment
 * says:
 *   DISK_IO=fail DISK_NTH=N DISK_ERRNO=N   the N-th call fails, or DISK_FAILS=N calls from it on
 *   DISK_IO=fail DISK_MOST=N               calls do at most N bytes
 *   DISK_IO=fail DISK_LIES=1               calls do not fail, but do something else (disk_rows.h)
 *   DISK_IO=record DISK_RECORD=FILE        writes and flushes are appended to FILE
 *                                          (tests/lib/disk_rows.h)
 *   DISK_IO=stuck DISK_NTH=N DISK_UNTIL=FILE
 *                                          the N-th call waits until FILE appears, or
 *                                          DISK_FAILS=N calls from it on
 *   DISK_CALLS=KIND                        with DISK_NTH: only calls of this kind count, and fail
 *                                          or wait: read, write, allocate or flush
 *   DISK_DIR=DIR                           with DISK_NTH: the same of files in this directory
 *   DISK_IO=slow DISK_US=N                 each call begins with a sleep of N microseconds */
#include "kernels/engine/engine_main.h"
#include "kernels/host/disk.h"
#include "kernels/host/host.h"
#include "kernels/host/paced.h"
#include "tests/lib/disk_rows.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 0) : 0;
}

/* Returns the kind of calls with the name @name; NULL: all. */
static unsigned kind_of(const char *name)
{
    static const char *const names[] = {"read", "write", "allocate", "flush"};
    unsigned i = 0;

    if (name == NULL) {
        return 0;
    }
    while (i < 4 && strcmp(names[i], name) != 0) {
        i++;
    }
    if (i == 4) {
        (void)fprintf(stderr, "disk_engine: no calls '%s'\n", name);
        exit(EXIT_FAILURE);
    }
    return 1u << i;
}

/* Returns the calls that the environment names, with their settings. */
static const struct cste_disk_io *choose(void)
{
    const char *name = getenv("DISK_IO"), *path = getenv("DISK_RECORD");

    disk_faults.kinds = kind_of(getenv("DISK_CALLS"));
    disk_faults.dir = getenv("DISK_DIR");
    disk_faults.nth = (unsigned)number("DISK_NTH");
    disk_faults.errnum = (int)number("DISK_ERRNO");
    disk_faults.n_fail = (unsigned)number("DISK_FAILS");
    disk_faults.most = number("DISK_MOST");
    disk_faults.lies = number("DISK_LIES") != 0;
    disk_stuck_until = getenv("DISK_UNTIL");
    disk_slow_us = (unsigned)number("DISK_US");
    if (name == NULL) {
        return &cste_disk_direct;
    }
    if (strcmp(name, "record") == 0 && path != NULL) {
        disk_record_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        return &disk_recording;
    }
    if (strcmp(name, "stuck") == 0 && disk_stuck_until != NULL) {
        return &disk_stuck;
    }
    return strcmp(name, "slow") == 0 ? &disk_slow : &disk_failing;
}

static int open_drive(void **state, const struct cste_device_spec *spec,
                      struct cste_device_about *about, struct cst_err *err)
{
    return cste_disk_open(state, choose(), spec, about, err);
}

int main(int argc, char **argv)
{
    static struct cste_device_ops drive;
    static const struct cste_engine_program program = {
        .name = "disk_engine",
        .what = "Copy to drives that fail",
        .ops = {[CSTE_ENGINE_OWN] = &cste_host_ops,
                [CSTE_ENGINE_PACED] = &cste_paced_ops,
                [CSTE_ENGINE_DISK] = &drive}};

    drive = cste_disk_ops;
    drive.open = open_drive;
    return cste_engine_main(&program, argc, argv);
}
