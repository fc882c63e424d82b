/* REDUCE on a GPU: contributions that lie in GPUs' memory, a grad row in the host's.
 *
 *   all sources on GPUs   kernel: sources -> stage on the GPU, sums of squares -> copied to the row
 *                         and to the host -> the processor writes the tiles' entries: sum, mark.
 *                         Killed on the way: the sources are as they were, the tiles have no mark.
 *   some on the host      the others are copied to the pinned stage and the processor adds up, tile
 *                         by tile, with its undo slot: a source may be the grad row itself, which a
 *                         kill must not lose. */
#ifndef CST_CUDA_REDUCTION_H
#define CST_CUDA_REDUCTION_H

#include "kernels/cuda/gpu.h"

/* cst_device_reduce, where its contract is; @thread is one of the team. */
int cst_gpu_reduce(struct cst_gpu *gpu, unsigned thread, const struct cst_tile_work *work,
                   uint32_t n_src, const struct cst_addr *src, uint64_t first, uint64_t count,
                   struct cst_undo_slot *undo, struct cst_err *err);

#endif
