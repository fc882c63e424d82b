/* SPDX-License-Identifier: Apache-2.0 */
/* A short text that identifies a machine's hardware, to notice rates that were measured on another
 * machine. It has two halves of 16 hex digits: the first for processor, cores, NUMA nodes and
 * memory, the second for the GPUs. */
#ifndef CST_FINGERPRINT_H
#define CST_FINGERPRINT_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of a fingerprint, with space to spare and the NUL; also the size of the field in struct
 * cst_rates. */
#define CST_FINGERPRINT_BYTES 65
#define CST_FINGERPRINT_HALF 16 /* Hex digits of the half that does not depend on GPUs. */

/* Write the fingerprint of this machine, whose GPUs have the @n_gpus UUIDs @gpus, in any order.
 * Reads /proc and /sys. */
void cst_fingerprint(const char *const *gpus, size_t n_gpus, char out[CST_FINGERPRINT_BYTES]);

/* Return whether both fingerprints are of machines with equal hardware, apart from GPUs. */
bool cst_fingerprint_same_host(const char *a, const char *b);

#endif
