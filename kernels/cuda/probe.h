/* SPDX-License-Identifier: Apache-2.0 */
/* The list of GPUs for cisternd, which must not call the driver itself. */
#ifndef CST_CUDA_PROBE_H
#define CST_CUDA_PROBE_H

#include "kernels/cuda/driver.h"
#include "proto/host_nodes.h"

#include <stdio.h>

/* Write one JSON object and a newline to @to. No context is created. CST_EIO: the output could not
 * be written; CST_ENOMEM. "node" is the host node nearest to the GPU; -1: not known.
 *
 *   {"gpus":[{"index","uuid","name","memory_bytes","node"}],"driver":12040}
 *   {"error":"sentence"}                                                     no driver or no GPU */
int cste_cuda_probe(FILE *to, struct cst_err *err);

/* Returns the host node that is nearest to @device; -1: not known. @nodes has been opened with
 * CST_HOST_NODES_WITH_DEVICES. */
int cste_cuda_node(const struct cst_cuda_driver *driver, const struct cst_host_nodes *nodes,
                   CUdevice device);

#endif
