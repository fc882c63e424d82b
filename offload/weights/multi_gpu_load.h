/* SPDX-License-Identifier: Apache-2.0 */
/* Several GPUs load the same weights together (multi_gpu_load.c). Owns nothing. Called by load, and
 * by core.c for the completions of pieces. */
#ifndef CST_MULTI_GPU_LOAD_H
#define CST_MULTI_GPU_LOAD_H

#include "offload/base/event.h"

struct cst_core;

#define CST_GATHER_MAX 8u /* Maximum number of GPUs that load together. */

/* How many GPUs may load together; 0: none. */
uint32_t cst_multi_gpu_load_most(const struct cst_core *core);

/* Load the weights of @chunk into block @b, which was just taken for them, and into blocks of other
 * GPUs that expect them. False: no other GPU does, and nothing was issued. */
bool cst_multi_gpu_load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                        enum cst_priority priority);

/* Handle the completion of a copy into, or out of, a gathered block. */
void cst_multi_gpu_load_done(struct cst_core *core, uint32_t rank, uint32_t b,
                             const struct cst_event *event);

#endif
