/* SPDX-License-Identifier: Apache-2.0 */
/* A digest of the bits that this processor's kernels compute. Nodes that train a job together
 * repeat each other's updates, and their states must have the same bits: a node with another digest
 * has kernels of another build, or a faulty processor, and is refused before it joins. */
#ifndef CSTD_KERNEL_DIGEST_H
#define CSTD_KERNEL_DIGEST_H

#include <stdint.h>

#define CSTD_KERNEL_DIGEST_BYTES 16

/* Sum, update and hash a few hundred fixed elements, in all formats of moments and both roundings,
 * with the best kernels of this processor. Takes microseconds. *isa is set to the static name of
 * their instruction set. */
void cstd_kernel_digest(uint8_t out[CSTD_KERNEL_DIGEST_BYTES], const char **isa);

#endif
