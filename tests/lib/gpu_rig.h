/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of the daemon's GPUs: a private daemon that starts tests/lib/engine_stub as its
 * engine program, with two GPUs of 64 MiB each, and a client that reads its statistics. */
#ifndef GPU_RIG_H
#define GPU_RIG_H

#include "tests/lib/job_rig.h"

#define GPU0 "GPU-00000000-stub-0"
#define GPU1 "GPU-00000000-stub-1"
#define MIB (UINT64_C(1) << 20)

extern char gpu_path[64]; /* path of a file or FIFO that the test uses; empty: none */

/* Prepare for a test. Nothing is started. */
void gpu_rig_setup(void);

/* Start the daemon with the options @a and @b; NULL ends the options. */
void gpu_rig_start(const char *a, const char *b);

/* Remove all jobs, check that the daemon settles, stop it, and remove gpu_path. */
void gpu_rig_teardown(void);

/* Make a path for the test that contains @what, store it in gpu_path and return it. */
const char *gpu_rig_path(const char *what);

/* Ask for Stat until @seen accepts the reply, and return that reply. Fails the test after some
 * seconds. */
const Cistern__StatReply *gpu_rig_await(bool (*seen)(const Cistern__StatReply *stat));

/* Connect, open job @name as @rank of @world on @device, and declare eight tensors, each as large
 * as a block. */
void gpu_rig_declare(struct raw_client *client, const char *name, uint32_t rank, uint32_t world,
                     const char *device, uint64_t pool_bytes);

/* Commit the declared tensors. Returns the status. */
int gpu_rig_commit(struct raw_client *client);

#endif
