/* SPDX-License-Identifier: Apache-2.0 */
/* UPDATE on a GPU: rows in its memory, out of place. A kernel reads one set of rows and writes
 * another set, tile by tile. Rows that are read are not changed and nothing is marked; a command
 * that was killed or failed is repeated from its start. An update in place would need undo slots in
 * GPU memory and is left to the engines of nodes. */
#ifndef CST_CUDA_UPDATE_H
#define CST_CUDA_UPDATE_H

#include "kernels/cuda/gpu.h"

/* cste_device_update on a GPU, with the contract of kernels/engine/device.h. @thread belongs to the
 * team. CST_EUNSUPPORTED: an update in place, or contributions that are to be summed; CST_EINVAL: a
 * row in host memory. */
int cste_gpu_update(void *state, unsigned thread, const struct cste_device_update *update,
                    uint64_t first, uint64_t count, struct cst_undo_slot *undo,
                    struct cst_tile_done *done, struct cst_err *err);

/* Compute the directions of Muon of tiles [@first, @first + @count) of the chunk, and store them in
 * the scratch. Statuses as cste_gpu_update. */
int cste_gpu_direct(struct cste_gpu *gpu, unsigned thread, const struct cste_device_update *update,
                    uint64_t first, uint64_t count, struct cst_err *err);

#endif
