/* SPDX-License-Identifier: Apache-2.0 */
/* REDUCE on a GPU: contributions in GPU or host memory, and a grad row in host memory. There are
 * three cases:
 *
 * - All sources are on GPUs, and the grad row is bf16. The kernel sums the sources into the buffer
 *   on the GPU and makes the sums of squares. The gradients are copied to the row and the sums of
 *   squares to the host. The processor then stores the sum and the mark of each tile. If the engine
 *   is killed in between, the sources are unchanged and the tiles have no mark.
 * - Some sources are on the host, and the grad row is bf16. The other sources are copied to the
 *   pinned buffer. The processor sums tile by tile with its undo slot, because a source may be the
 *   grad row itself, which must survive a kill.
 * - The grad row is fp32, and the processor writes the row. Sources on GPUs are copied to the host
 *   as they are (2 bytes per element each) and added to the row in place, with the undo slot: the
 *   row is the first operand of the sum, and the sources follow in rank order. The first sum of a
 *   step does not include the row. If all its sources are on GPUs and there are more than two, the
 *   GPU sums them, and the fp32 sum is copied to the host (4 bytes per element). */
#ifndef CST_CUDA_REDUCTION_H
#define CST_CUDA_REDUCTION_H

#include "kernels/cuda/gpu.h"

/* cste_device_reduce on a GPU, with the contract of kernels/engine/device.h. @thread belongs to the
 * team. */
int cste_gpu_reduce(void *state, unsigned thread, const struct cst_tile_work *work, uint32_t n_src,
                    const struct cste_addr *src, uint64_t first, uint64_t count,
                    struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);

#endif
