/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by oneDNN: c = a b in fp32, with a and b operands in bf16 or fp32, each plain or
 * turned. One context per rank; primitives are made on first use of a shape and kept. The
 * scratchpads are the context's own, so ranks in threads of one process do not meet. */
#ifndef GPT_MATMUL_H
#define GPT_MATMUL_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>

struct gpt_matmul;

/* True where this CPU multiplies bf16 in hardware (AMX-BF16 or AVX512_BF16): decided by its
 * features, never by a timing, so that all ranks and runs agree. */
bool gpt_matmul_fast_bf16(void);

/* @bf16: operands are bf16. CST_ENOMEM; CST_EUNSUPPORTED: oneDNN has no such product on this CPU.
 */
int gpt_matmul_open(struct gpt_matmul **out, bool bf16, struct cst_err *err);
void gpt_matmul_close(struct gpt_matmul *mm);

/* c (m x n) = a b. a is m x k, or stored as k x m where @turn_a; b is k x n, or stored as n x k
 * where @turn_b; all row-major. Uses the OpenMP threads that gpt_parallel_limit allowed to the
 * calling thread. CST_EUNSUPPORTED, CST_ENOMEM, CST_EINTERNAL. */
int gpt_matmul(struct gpt_matmul *mm, size_t m, size_t n, size_t k, const void *a, bool turn_a,
               const void *b, bool turn_b, float *c, struct cst_err *err);

#endif
