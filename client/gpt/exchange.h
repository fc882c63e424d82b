/* SPDX-License-Identifier: Apache-2.0 */
/* Exchange of a mixture's tokens between the ranks of a job: memory that all ranks share, and a
 * barrier. It carries tokens to the rank of their expert and results back. Every rank has a region
 * that all other ranks can read and write. What a rank writes before a barrier is visible to all
 * ranks after this barrier.
 *
 *   alone           one rank without peers
 *   one process     gpt_exchange_hub: ranks are threads of --store=local
 *   processes       a memfd that rank 0 creates for each join and sends to the others through a
 *                   Unix socket in the abstract namespace. No name is left behind, whichever
 *                   process dies. A closed connection tells the others that its rank is dead.
 *
 * When a rank dies, leaves or breaks the exchange, the barriers of all ranks return CST_EPEERDIED
 * within a tenth of a second, so no rank hangs. After the store's sync all ranks join again, on new
 * memory. A handle is used by one thread. */
#ifndef GPT_EXCHANGE_H
#define GPT_EXCHANGE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPT_EXCHANGE_MAX_RANKS 64

struct gpt_exchange;
struct gpt_exchange_hub;

/* Open an exchange of one rank without peers. It is joined at once. CST_ENOMEM. */
int gpt_exchange_open_alone(struct gpt_exchange **out, size_t region_bytes, struct cst_err *err);

/* Open the shared memory and barrier for @world threads of this process. CST_ENOMEM. Call
 * gpt_exchange_hub_close after all exchanges of the hub are closed. */
int gpt_exchange_hub_open(struct gpt_exchange_hub **out, uint32_t world, size_t region_bytes,
                          struct cst_err *err);
void gpt_exchange_hub_close(struct gpt_exchange_hub *hub);

/* Declare that a rank of the hub will not come: no other rank waits any more, neither now nor
 * later. Any thread may call this function. */
void gpt_exchange_hub_break(struct gpt_exchange_hub *hub);

/* Open the exchange of one rank of @hub, which is borrowed. CST_ENOMEM. */
int gpt_exchange_open_thread(struct gpt_exchange **out, struct gpt_exchange_hub *hub, uint32_t rank,
                             struct cst_err *err);

/* Open the exchange of one of @world processes, without connecting yet. @name is equal in all
 * processes of the job, and no other job of this user has it. It has 1 to 106 characters, the limit
 * of a Unix socket's address. CST_ENOMEM; CST_EINVAL: a bad @name. */
int gpt_exchange_open_process(struct gpt_exchange **out, const char *name, uint32_t rank,
                              uint32_t world, size_t region_bytes, struct cst_err *err);

/* Leave the exchange and free the handle. @x may be NULL. */
void gpt_exchange_close(struct gpt_exchange *x);

/* Wait until all ranks have joined. Every rank calls it after each sync of the store. Statuses:
 *   - CST_EPEERDIED: some ranks have not come within 20 seconds. As all ranks were present at the
 *     sync, they must have died since. Sync once more.
 *   - CST_EMISMATCH: the options of the ranks differ.
 *   - CST_EDENIED: a process of another user answers under the job's name.
 *   - CST_EBUSY: rank 0 found the job's name in use for 20 seconds.
 *   - CST_ECANCELLED: the hub is broken.
 *   - CST_EIO, CST_ENOMEM. */
int gpt_exchange_join(struct gpt_exchange *x, struct cst_err *err);

/* Give up the exchange that is under way: all ranks that wait for this one get CST_EPEERDIED. Call
 * it before a sync of the store. */
void gpt_exchange_leave(struct gpt_exchange *x);

/* Callbacks for the user of an exchange. They run in the thread that uses the exchange. */
struct gpt_exchange_watch {
    /* Called every 50 ms by a barrier that waits. */
    void (*look)(void *arg);
    /* Called when the exchange is joined. The memory holds the header and the regions of all
     * ranks. */
    void (*came)(void *arg, void *base, size_t bytes);
    /* Called before the memory at @base goes away. It may be unmapped after this call. */
    void (*goes)(void *arg, void *base);
    void *arg; /* argument of all callbacks */
};

/* Call @watch from now on, instead of the watch that was set before. The previous watch, if any, is
 * told that the memory goes. If memory is present, @watch is told of it at once. @watch is
 * borrowed. NULL: no callbacks. */
void gpt_exchange_watch(struct gpt_exchange *x, const struct gpt_exchange_watch *watch);

/* Barrier: wait until every rank has called it equally often. The exchange must be joined.
 * CST_EPEERDIED: a rank has left. */
int gpt_exchange_meet(struct gpt_exchange *x, struct cst_err *err);

/* Region of @rank: region_bytes, aligned to a page. Valid while the exchange is joined. */
void *gpt_exchange_region(const struct gpt_exchange *x, uint32_t rank);

uint32_t gpt_exchange_rank(const struct gpt_exchange *x);
uint32_t gpt_exchange_world(const struct gpt_exchange *x);

#endif
