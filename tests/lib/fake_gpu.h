/* SPDX-License-Identifier: Apache-2.0 */
/* Lets tests run on simulated GPUs: tests/lib/fakecuda replaces the CUDA driver in the processes
 * that the test starts. */
#ifndef CST_FAKE_GPU_H
#define CST_FAKE_GPU_H

#define FAKE_GPU_ENGINE "./cistern-engine-cuda"

/* Load tests/lib/fakecuda as libcuda.so.1 and tests/lib/fakenccl as libnccl.so.2, in children and
 * in this program, which is executed again with @argv of main if it was started without. Unsets
 * CST_FAKECUDA_* (but not the seed), CST_FAKENCCL_* and CUDA_VISIBLE_DEVICES. Must be the first
 * call of main. */
void fake_gpu_use(char **argv);

/* The UUID of the machine's GPU number @i, as the engine's --probe reports it. The string is
 * static. */
const char *fake_gpu_uuid(unsigned i);

/* Count GPU memory over all processes from now on. Memory counts as long as any process has a
 * handle or a mapping of it. */
void fake_gpu_open_ledger(void);
/* Remove the ledger. */
void fake_gpu_close_ledger(void);

/* Bytes of GPU memory that exist at present. */
unsigned long fake_gpu_used(void);

/* The output of the engine's --probe in the current environment, in a static buffer. NULL if the
 * output is empty or the exit status is not 0. */
const char *fake_gpu_probe(void);

#endif
