/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of a job share for the time of a step, and where they meet: how the tokens
 * of a mixture come to the rank of their expert and back. Every rank has a region that all others
 * read and write; what is written before a meeting is seen by everybody behind it.
 *
 *   alone          one rank, no peers
 *   in one process gpt_exchange_hub: ranks are threads of --store=local
 *   processes      a memfd that rank 0 makes anew for each join and hands to the others through a
 *                  socket in the abstract namespace. No name is left behind whatever dies, and a
 *                  dead rank's connection tells the others.
 *
 * A rank that dies, leaves or breaks ends the meetings of all with CST_EPEERDIED, at the latest
 * after a tenth of a second: nobody hangs. Then all join again, after the store's sync, on fresh
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

/* No peers. CST_ENOMEM. */
int gpt_exchange_open_alone(struct gpt_exchange **out, size_t region_bytes, struct cst_err *err);

/* The meeting place of @world threads. CST_ENOMEM. Closed when all their exchanges are. */
int gpt_exchange_hub_open(struct gpt_exchange_hub **out, uint32_t world, size_t region_bytes,
                          struct cst_err *err);
void gpt_exchange_hub_close(struct gpt_exchange_hub *hub);

/* One of its ranks will not come: no other waits any more, now or later. Any thread. */
void gpt_exchange_hub_break(struct gpt_exchange_hub *hub);

/* One rank of @hub, which is borrowed. CST_ENOMEM. */
int gpt_exchange_open_thread(struct gpt_exchange **out, struct gpt_exchange_hub *hub, uint32_t rank,
                             struct cst_err *err);

/* One of @world processes; @name: the same in all, of 1..106 characters (an address of a Unix
 * socket has no more), and no other job's of this user. Nothing is connected yet. CST_ENOMEM,
 * CST_EINVAL: the name. */
int gpt_exchange_open_process(struct gpt_exchange **out, const char *name, uint32_t rank,
                              uint32_t world, size_t region_bytes, struct cst_err *err);

/* Leaves, and frees. NULL is allowed. */
void gpt_exchange_close(struct gpt_exchange *x);

/* Wait until all ranks have joined. Called by every rank after the store's sync, and again after
 * each. CST_EPEERDIED: not all have come in 20 seconds, though all were there at the sync: some are
 * gone again, and it is to be synced once more; CST_EMISMATCH: the ranks' options differ;
 * CST_EDENIED: somebody else answers; CST_ECANCELLED: the hub is broken; CST_EIO, CST_ENOMEM. */
int gpt_exchange_join(struct gpt_exchange *x, struct cst_err *err);

/* Give up what is under way: all that wait for this rank get CST_EPEERDIED. Before a sync. */
void gpt_exchange_leave(struct gpt_exchange *x);

/* What who uses an exchange wants to be told, in the thread that uses it. */
struct gpt_exchange_watch {
    void (*look)(void *arg);                           /* now and then, by a meeting that waits */
    void (*came)(void *arg, void *base, size_t bytes); /* joined: header and regions of all ranks */
    void (*goes)(void *arg, void *base);               /* the same are gone when it returns */
    void *arg;                                         /* of them */
};

/* Tell @watch, which is borrowed, from now on, at once of memory that is there; NULL: nobody, and
 * who was told so far is told that it goes. */
void gpt_exchange_watch(struct gpt_exchange *x, const struct gpt_exchange_watch *watch);

/* Wait until every rank has called it as often. CST_EPEERDIED. Joined only. */
int gpt_exchange_meet(struct gpt_exchange *x, struct cst_err *err);

/* Region of @rank: region_bytes, aligned to a page. While joined. */
void *gpt_exchange_region(const struct gpt_exchange *x, uint32_t rank);

uint32_t gpt_exchange_rank(const struct gpt_exchange *x);
uint32_t gpt_exchange_world(const struct gpt_exchange *x);

#endif
