/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the daemon's GPUs share: a private daemon whose engine program is
 * tests/lib/engine_stub, with two GPUs of 64 MiB each, and a client that looks at its books. */
#ifndef GPU_RIG_H
#define GPU_RIG_H

#include "tests/lib/settle.h"

#define GPU0 "GPU-00000000-stub-0"
#define GPU1 "GPU-00000000-stub-1"
#define MIB (UINT64_C(1) << 20)

extern struct daemon_proc proc;   /* pid 0: not started */
extern struct raw_client witness; /* looks at the books and removes jobs */
extern unsigned base_fds;         /* descriptors of the daemon with the witness alone */
extern char gpu_path[64];         /* of a file or FIFO of the test's; empty: none */

/* Before a test: nothing runs yet. */
void gpu_rig_setup(void);

/* Start the daemon. NULL ends the options; more than @a and @b are not needed. */
void gpu_rig_start(const char *a, const char *b);

/* Everything must settle when its jobs are removed; stop the daemon, remove gpu_path. */
void gpu_rig_teardown(void);

/* Make gpu_path a name with @what in it, and return it. */
const char *gpu_rig_path(const char *what);

/* Each Stat is a turn of the daemon; it must see @seen within some seconds. */
const Cistern__StatReply *gpu_rig_await(bool (*seen)(const Cistern__StatReply *stat));

/* Connect, open @name as @rank of @world on @device, and declare eight tensors of a block each. */
void gpu_rig_declare(struct raw_client *client, const char *name, uint32_t rank, uint32_t world,
                     const char *device, uint64_t pool_bytes);

/* Commit those; status. */
int gpu_rig_commit(struct raw_client *client);

#endif
