/* SPDX-License-Identifier: Apache-2.0 */
/* UPDATE on a GPU: rows in its memory, out of place. A kernel reads one set of rows and writes
 * another, tile by tile; nothing that was read is changed, nothing is marked, so what was killed or
 * failed is done again from its start. In place would take undo slots in the GPU's memory: that is
 * for the host's engines. */
#ifndef CST_CUDA_UPDATE_H
#define CST_CUDA_UPDATE_H

#include "kernels/cuda/gpu.h"

/* cst_device_update, where its contract is; @thread is one of the team. CST_EUNSUPPORTED: in place,
 * or contributions that are to be summed on the way; CST_EINVAL: a row in host memory. */
int cst_gpu_update(struct cst_gpu *gpu, unsigned thread, const struct cst_device_update *update,
                   uint64_t first, uint64_t count, struct cst_tile_done *done, struct cst_err *err);

#endif
