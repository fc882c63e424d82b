/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of training jobs on the simulated GPUs of tests/lib/fakecuda: a daemon with two
 * GPUs, and checks of what its processes leave behind. */
#ifndef CUDA_RIG_H
#define CUDA_RIG_H

#include "tests/lib/train_rig.h"

/* Start the daemon with @config. Its processes and the workers use tests/lib/fakecuda as their CUDA
 * driver. */
void cuda_rig_open(const char *config);

/* As cuda_rig_open, with @n_gpus GPUs. */
void cuda_rig_open_gpus(const char *config, unsigned n_gpus);

/* Stop the daemon. Fails the test if a process misused the driver, if a process that exited by
 * itself leaked an object and its driver had no fault, or if GPU memory is still in use. */
void cuda_rig_close(void);

/* The part of cuda_rig_close after the end of the daemon. */
void cuda_rig_check_end(void);

/* @late: every operation of every stream, in engines and workers, is delayed by a random time from
 * now on, so that streams overtake each other and missing waits are found. False: no delays. */
void cuda_rig_dawdle(bool late);

/* Number of bytes that the drivers of ended processes have reported so far. */
long cuda_rig_reported(void);

/* True if the driver of process @pid, which has ended, reported a fault that the test had asked
 * for. @from: cuda_rig_reported() before the process began; earlier ones can have had its pid. */
bool cuda_rig_has_fault(pid_t pid, long from);

#endif
