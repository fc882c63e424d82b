/* SPDX-License-Identifier: Apache-2.0 */
/* Tests on a GPU that is none: tests/lib/fakecuda in the place of the driver, for the processes
 * that are started from here on. */
#ifndef CST_FAKE_GPU_H
#define CST_FAKE_GPU_H

#define FAKE_GPU_ENGINE "./cistern-engine-cuda"

/* Put it in the way of libcuda.so.1: for children; and for this program, which is started again if
 * it was not started so (@argv is main's). Settings of somebody else's shell (CST_FAKECUDA_*,
 * CUDA_VISIBLE_DEVICES) are taken away, but the seed. Call it first in main. */
void fake_gpu_use(char **argv);

/* The UUID of the machine's GPU number @i, as the engine's --probe tells it. Static. */
const char *fake_gpu_uuid(unsigned i);

/* From now on GPU memory is counted over all processes, for as long as a handle or a mapping of it
 * is there. */
void fake_gpu_open_ledger(void);
void fake_gpu_close_ledger(void);

/* Bytes of GPU memory that are in being. */
unsigned long fake_gpu_used(void);

/* What --probe writes with the environment as it is; NULL: nothing, or a status that is not 0.
 * Static. */
const char *fake_gpu_probe(void);

#endif
