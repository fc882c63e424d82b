/* SPDX-License-Identifier: Apache-2.0 */
/* A digest of the bits that this processor's kernels compute. Machines that train a job together
 * repeat each other's updates, and their states must have the same bits: a machine with another
 * digest has kernels of another build, or a faulty processor, and is refused before it joins. */
#ifndef CSTD_KERNEL_DIGEST_H
#define CSTD_KERNEL_DIGEST_H

#include <stdint.h>

#define CSTD_KERNEL_DIGEST_BYTES 16

/* Sum, update and hash a few hundred fixed elements with every optimizer, in all formats of master
 * weights and moments and with both roundings, with the kernels of the instruction set @isa; NULL:
 * the best ones of this processor. Takes milliseconds. Returns the static name of the instruction
 * set; NULL: this processor does not have it. One thread at a time. */
const char *cstd_kernel_digest(const char *isa, uint8_t out[CSTD_KERNEL_DIGEST_BYTES]);

#endif
