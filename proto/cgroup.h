/* SPDX-License-Identifier: Apache-2.0 */
/* The control group to which the kernel charges the memory that a process touches first. No state;
 * any thread. */
#ifndef CST_CGROUP_H
#define CST_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

#define CST_CGROUP_BYTES 512 /* Bytes of the path of a group with the NUL; longer ones are cut. */

/* Write the path of the group of process @pid (0: this one) to @out, such as
 * "/system.slice/cisternd.service": that of the memory controller of version 1, or that of version
 * 2. @root: prefix of /proc; "" except in tests. False: /proc does not show the process, or no
 * group of it. */
bool cst_cgroup_of(const char *root, int pid, char out[CST_CGROUP_BYTES]);

#endif
