/* SPDX-License-Identifier: Apache-2.0 */
/* What GPUs there are, for cisternd, which must not ask the driver itself. */
#ifndef CST_CUDA_PROBE_H
#define CST_CUDA_PROBE_H

#include "kernels/cuda/driver.h"

#include <stdio.h>

/* Write one JSON object and a newline to @to:
 * {"gpus":[{"index","uuid","name","memory_bytes","node"}],"driver":12040}, node -1 where it is not
 * known, or
 * {"error":"sentence"} where there is none. Makes no context. CST_EIO: it could not be written;
 * CST_ENOMEM. */
int cst_cuda_probe(FILE *to, struct cst_err *err);

/* The NUMA node that @device is near to, as the kernel says of its PCI slot; -1: it does not say.
 */
int cst_cuda_node(const struct cst_cuda_driver *driver, CUdevice device);

#endif
