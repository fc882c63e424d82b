/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of training jobs on GPUs that are none share: a daemon with two of them, and what its
 * processes leave behind. */
#ifndef CUDA_RIG_H
#define CUDA_RIG_H

#include "tests/lib/train_rig.h"

/* Start the daemon with @config; the driver of its processes, and of workers, is
 * tests/lib/fakecuda. */
void cuda_rig_open(const char *config);

/* Stop it. Nobody who ended by himself has left anything, unless the test broke its GPU, or done
 * what a driver would not stand. */
void cuda_rig_close(void);

/* Every operation of every stream, in engines and workers, comes late from now on: streams overtake
 * each other, and whoever does not wait for what it must come after sees it. False: in time. */
void cuda_rig_dawdle(bool late);

/* Did the driver of process @pid, which has ended, fail as it was told to? */
bool cuda_rig_has_fault(pid_t pid);

#endif
