/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of an update by Muon on a GPU, before the update itself (kernels/math/muon.h). The
 * scratch is GPU memory. An update can be begun again from its directions; a phase cannot be
 * repeated, because some work in place. */
#ifndef CST_CUDA_MUON_H
#define CST_CUDA_MUON_H

#include "kernels/cuda/gpu.h"

/* cste_device_orthogonalise on a GPU, with the contract of kernels/engine/device.h. @thread belongs
 * to the team. CST_EUNSUPPORTED: an update in place; CST_EINVAL: a row in host memory. */
int cste_gpu_orthogonalise(void *state, unsigned thread, const struct cste_device_update *update,
                           unsigned phase, uint64_t first, uint64_t count, struct cst_err *err);

#endif
