/* SPDX-License-Identifier: Apache-2.0 */
/* REDUCE on a GPU: contributions that lie in GPUs' memory, a grad row in the host's.
 *
 *   all sources on GPUs   kernel: sources -> stage on the GPU, sums of squares -> copied to the row
 *                         and to the host -> the processor writes the tiles' entries: sum, mark.
 *                         Killed on the way: the sources are as they were, the tiles have no mark.
 *   some on the host      the others are copied to the pinned stage and the processor adds up, tile
 *                         by tile, with its undo slot: a source may be the grad row itself, which a
 *                         kill must not lose.
 *   an fp32 grad row      it is the processor's. Sources on GPUs go down as they are (2 bytes an
 *                         element each) and are added to it in place, with the undo slot: sums go
 *                         from the row on, in rank order. But the first sum of a step begins with
 *                         nothing: there more than two sources are summed on the GPU, and the fp32
 *                         sum goes down through the stage (4 bytes an element). */
#ifndef CST_CUDA_REDUCTION_H
#define CST_CUDA_REDUCTION_H

#include "kernels/cuda/gpu.h"

/* cst_device_reduce, where its contract is; @thread is one of the team. */
int cst_gpu_reduce(struct cst_gpu *gpu, unsigned thread, const struct cst_tile_work *work,
                   uint32_t n_src, const struct cst_addr *src, uint64_t first, uint64_t count,
                   struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err);

#endif
