/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rank blocks (offload/base/machines.h): where they are, and how they become the gradient.
 * Does nothing in a job on one machine whose ranks are one rank block.
 *
 *   all contributions here are in the rows of their rank blocks (collection.h)
 *      -> PARTIAL to the home: it copies partials to landings, and adds all of them to the grad row
 *      -> SUMMED to all: squares of the tiles; a buddy copies the sum to its grad row
 *
 * Owned here: how far that is for each chunk, which partials have come, and who uses the landings.
 * What was told in an attempt that is over is void, and so is what is still being copied then.
 * Called by core.c, collection, sum and agreement. */
#ifndef CST_PARTIALS_H
#define CST_PARTIALS_H

#include "offload/base/core_config.h"
#include "offload/base/event.h"
#include "offload/base/flight.h"
#include "offload/books/membership.h"

struct cst_core;
struct cst_sources;

/* The partials of one chunk, in the present collection.
 *
 *   OPEN --all contributions here are added--> HERE --the home has told that it has the sum-->
 * WHOLE or, in a buddy, and it was copied at the home:  HERE --all have come--> QUEUED --landings
 * are free--> COPYING -> ADDING -> WHOLE
 */
enum cst_partials_state {
    CST_PARTIALS_OPEN,
    CST_PARTIALS_HERE,
    CST_PARTIALS_QUEUED,
    CST_PARTIALS_COPYING,
    CST_PARTIALS_ADDING,
    CST_PARTIALS_WHOLE,
};

struct cst_chunk_partials {
    enum cst_partials_state state;
    uint64_t filled; /* Bit b: the row of rank block b here has contributions. */
    uint32_t slot;   /* Index into `sums`; CST_NONE: this machine is never the chunk's home. */
    uint32_t next;   /* QUEUED: the next chunk in the queue; CST_NONE: none. */
};

/* What has come of a chunk that can have its home here. */
struct cst_partials_sum {
    struct cst_when when; /* The latest one of which something has come. */
    uint64_t come;        /* Bit b: rank block b of the job is complete. */
    uint64_t filled;      /* Bit b: there is a partial. */
    uint32_t last;        /* The machine of which something has come last; CST_NONE: this one. */
};

struct cst_partials_place {
    struct cst_place place;
    uint32_t machine;
};

/* A set of landings of a node. */
struct cst_partials_set {
    uint32_t chunk;  /* CST_NONE: the set is free. */
    uint32_t n_left; /* COPYs in flight. */
    bool failed;     /* One of them has failed. */
    uint64_t ticket; /* The REDUCE that reads the landings; 0: none was issued. */
};

struct cst_partials {
    bool on;
    uint32_t n_here;                      /* Rank blocks here; 0: `on` is not set. */
    uint32_t n;                           /* Rank blocks of the job. */
    uint64_t here;                        /* Bit b: rank block b of the job is here. */
    uint32_t block_ranks;                 /* Ranks of each rank block here. */
    struct cst_chunk_partials *chunks;    /* Owned. */
    struct cst_partials_sum *sums;        /* Owned. */
    struct cst_partials_place *places;    /* Of rank block b of sums[s] at s x n + b; owned. */
    struct cst_partials_set *sets;        /* CST_LAYOUT_PARTIAL_SETS per node; owned. */
    uint32_t *first_queued, *last_queued; /* Per node; owned. */
    double *squares;                      /* Of the tiles of any one chunk; owned. */
    uint32_t n_told;                      /* Chunks of the present collection that are not OPEN. */
    uint32_t n_adding;                    /* Chunks that are ADDING. */
};

/* Fill core->partials. CST_EINVAL: the layout lacks rows for the rank blocks here, or sums are not
 * fp32 although a rank block has several contributions. CST_ENOMEM. The caller calls
 * cst_partials_close nevertheless. */
int cst_partials_open(struct cst_core *core, const struct cst_core_config *config,
                      struct cst_err *err);
void cst_partials_close(struct cst_core *core);

/* True if the next contributions of the ranks @a and @b to @chunk are in the same rank block. */
bool cst_partials_same_block(const struct cst_core *core, uint32_t chunk, uint32_t a, uint32_t b);

/* @reduce, which was just issued, adds the next contributions to @chunk, the first of which is that
 * of @rank: name the row of its rank block, and add to what is there. */
void cst_partials_add(struct cst_core *core, uint32_t chunk, uint32_t rank,
                      struct cst_command *reduce);

/* All contributions to @chunk here are added. Returns true if its gradient is whole. */
bool cst_partials_whole(struct cst_core *core, uint32_t chunk);

/* Handle PARTIAL and SUMMED. */
void cst_partials_come(struct cst_core *core, const struct cst_event *event);
void cst_partials_summed(struct cst_core *core, const struct cst_event *event);

/* Handle the completion of a COPY from another machine, and of a REDUCE. */
void cst_partials_copied(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event);
void cst_partials_added(struct cst_core *core, const struct cst_flight *flight);

/* The collection ends. */
void cst_partials_drop(struct cst_core *core);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_partials_check(const struct cst_core *core);

#endif
