/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by oneDNN: c = a b in fp32. The operands a and b are bf16 or fp32, each of them
 * plain or transposed. There is one context per rank. A context compiles a product on the first use
 * of its shape and keeps it. Each context has its own scratchpad, so that ranks in threads of one
 * process do not share memory. */
#ifndef GPT_MATMUL_H
#define GPT_MATMUL_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>

struct gpt_matmul;

/* True where this CPU multiplies bf16 in hardware (AMX-BF16 or AVX512_BF16). The answer depends on
 * the CPU's features and never on a timing, so that all ranks and runs agree. */
bool gpt_matmul_fast_bf16(void);

/* Open a context; the caller closes it. @bf16: the operands are bf16. @n_threads: threads that copy
 * operands. CST_ENOMEM; CST_EUNSUPPORTED, CST_EINTERNAL: oneDNN cannot start on this CPU. */
int gpt_matmul_open(struct gpt_matmul **out, bool bf16, unsigned n_threads, struct cst_err *err);
void gpt_matmul_close(struct gpt_matmul *mm);

/* c (m x n) = a b, all row-major. a is m x k, or stored as k x m where @turn_a. b is k x n, or
 * stored as n x k where @turn_b. The product uses the OpenMP threads that gpt_parallel_limit
 * allowed to the calling thread. Statuses:
 *   - CST_EUNSUPPORTED: oneDNN has no product of this kind for this CPU.
 *   - CST_ENOMEM.
 *   - CST_EINTERNAL: oneDNN failed. */
int gpt_matmul(struct gpt_matmul *mm, size_t m, size_t n, size_t k, const void *a, bool turn_a,
               const void *b, bool turn_b, float *c, struct cst_err *err);

#endif
