/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may use: the machine's, or less where a control group (systemd's
 * MemoryMax=, a container, version 1 or 2) holds it to less. What budgets are compared with: memory
 * beyond it is not refused by the kernel, it ends in the killing of processes. A limit can be
 * changed at any time, so it is read again when memory is granted. Any thread. */
#ifndef CST_MACHINE_H
#define CST_MACHINE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* The limit of a control group. */
struct cst_machine_limit {
    uint64_t bytes;      /* of memory that processes in it may use together */
    char file[PATH_MAX]; /* that says so */
};

/* The least limit of this process's control groups and of those that they lie in, as far as they
 * can be read. False: none is below the machine's memory. @root: where /proc and /sys lie, "" but
 * in tests. */
bool cst_machine_limit(const char *root, struct cst_machine_limit *out);

/* Bytes that the process may use. @root as above. */
uint64_t cst_machine_memory(const char *root);

#endif
