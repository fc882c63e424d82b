/* SPDX-License-Identifier: Apache-2.0 */
/* The list of GPUs for cisternd, which must not call the driver itself. */
#ifndef CST_CUDA_PROBE_H
#define CST_CUDA_PROBE_H

#include "kernels/cuda/driver.h"

#include <stdio.h>

/* Write one JSON object and a newline to @to. No context is created. CST_EIO: the output could not
 * be written; CST_ENOMEM.
 *
 *   {"gpus":[{"index","uuid","name","memory_bytes","node"}],"driver":12040}   node -1: not known
 *   {"error":"sentence"}                                                     no driver or no GPU */
int cste_cuda_probe(FILE *to, struct cst_err *err);

/* Returns the NUMA node of @device, as the kernel gives it for the PCI slot; -1: not known. */
int cste_cuda_node(const struct cst_cuda_driver *driver, CUdevice device);

#endif
