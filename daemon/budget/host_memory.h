/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may use: the memory of the host nodes (proto/host_nodes.h), or the
 * limit of a control group (systemd's MemoryMax=, a container; version 1 or 2) if that is less.
 * Budgets are compared with this number, because the kernel does not refuse memory beyond the limit
 * but kills processes. A limit can change at any time and is therefore read again whenever memory
 * is granted. Any thread. */
#ifndef CSTD_HOST_MEMORY_H
#define CSTD_HOST_MEMORY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* The memory limit of a control group. */
struct cstd_host_memory_limit {
    uint64_t bytes;      /* Memory in bytes that all processes of the group may use together. */
    char file[PATH_MAX]; /* The file that contains the limit. */
};

/* Find the smallest limit among the control groups of this process and their ancestors, as far as
 * they can be read. False: no limit is below the machine's memory. @root: prefix of /proc and /sys;
 * "" except in tests. */
bool cstd_host_memory_limit(const char *root, struct cstd_host_memory_limit *out);

/* Returns the bytes that this process may use. @root: as for cstd_host_memory_limit. */
uint64_t cstd_host_memory_memory(const char *root);

#endif
