/* SPDX-License-Identifier: Apache-2.0 */
/* What a machine is made of, as a short text: rates that were measured on another one are not its
 * own. Two halves of 16 hex digits: processor, cores, NUMA nodes and memory; then the GPUs. */
#ifndef CST_FINGERPRINT_H
#define CST_FINGERPRINT_H

#include <stdbool.h>
#include <stddef.h>

#define CST_FINGERPRINT_BYTES 65 /* with the NUL; room in struct cst_rates */
#define CST_FINGERPRINT_HALF 16  /* digits of what is not a GPU */

/* Of this machine, whose GPUs have the @n_gpus UUIDs, in any order. Reads /proc and /sys. */
void cst_fingerprint(const char *const *gpus, size_t n_gpus, char out[CST_FINGERPRINT_BYTES]);

/* Both are of machines alike, GPUs aside. */
bool cst_fingerprint_same_host(const char *a, const char *b);

#endif
