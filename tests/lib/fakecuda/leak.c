/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a process leaves behind at its end. */
#include "tests/lib/fakecuda/context.h"
#include "tests/lib/fakecuda/event.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/handle.h"
#include "tests/lib/fakecuda/module.h"
#include "tests/lib/fakecuda/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* Write a line of JSON with a single write, so that lines of several processes do not mix. */
static size_t write_line(char *line, size_t bytes)
{
    const struct {
        const char *name;
        size_t n;
    } counts[] = {
        {"handles", cst_fake_n_handles()},
        {"mappings", cst_fake_range_count(CST_FAKE_MAPPED, NULL)},
        {"reservations", cst_fake_range_count(CST_FAKE_RESERVED, NULL)},
        {"allocations", cst_fake_range_count(CST_FAKE_ALLOCATED, NULL)},
        {"pinned", cst_fake_range_count(CST_FAKE_PINNED, NULL)},
        {"registered", cst_fake_range_count(CST_FAKE_REGISTERED, NULL)},
        {"streams", cst_fake_n_streams()},
        {"events", cst_fake_n_events()},
        {"modules", cst_fake_n_modules()},
        {"contexts", cst_fake_n_contexts()},
        {"swept", cst_fake_leaks()},
    };
    size_t sum = 0;
    int at = snprintf(line, bytes, "{\"pid\":%d,\"name\":\"%s\"", (int)getpid(),
                      program_invocation_short_name);

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        at += snprintf(line + at, bytes - (size_t)at, ",\"%s\":%zu", counts[i].name, counts[i].n);
        sum += counts[i].n;
    }
    (void)snprintf(line + at, bytes - (size_t)at,
                   ",\"leaks\":%zu,\"misuses\":%llu,\"calls\":%llu,\"faults\":%llu}\n", sum,
                   (unsigned long long)cst_fake_misuses(), (unsigned long long)cst_fake_calls(),
                   (unsigned long long)cst_fake_faults());
    return sum;
}

/* Runs at exit, but not if the process is killed. */
__attribute__((destructor)) static void report(void)
{
    const char *path = cst_fake_settings()->leak_file;
    char line[1024];
    int fd;

    if (!cst_fake_is_ready()) {
        return;
    }
    cst_fake_lock();
    if (write_line(line, sizeof line) > 0) {
        fprintf(stderr, "fakecuda: at exit: %s", line);
    }
    cst_fake_unlock();
    if (path == NULL) {
        return;
    }
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || dprintf(fd, "%s", line) < 0) {
        perror("fakecuda: CST_FAKECUDA_LEAKS");
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}
