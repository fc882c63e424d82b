/* SPDX-License-Identifier: Apache-2.0 */
/* Lent memory: empty blocks of a rank's pool that serve as buffers of device updates, instead of
 * memory that is reserved for them (lent_memory.c). Owns which buffers are taken, and returns them.
 * Does not choose chunks or issue commands. Called by staged_update, update_end and fetch. */
#ifndef CST_LENT_MEMORY_H
#define CST_LENT_MEMORY_H

#include "offload/base/core_config.h"
#include "offload/base/flight.h"
#include "offload/layout/buffers.h"

struct cst_core;
struct cst_device_reservation;

/* The blocks that a pool lends. */
struct cst_lent_division {
    struct cst_buffers buffers; /* As cst_buffers_of_blocks lays them out. */
    uint32_t part;              /* The size class of the blocks. */
    uint32_t n_pairs;           /* Number of pairs of adjacent blocks that make a buffer. */
};

struct cst_lent_memory {
    bool on;          /* The buffers of the device reservation are blocks. */
    uint32_t rank;    /* The rank whose pool lends them. */
    uint32_t part;    /* The size class of the blocks. */
    uint32_t n_pairs; /* Number of pairs of adjacent blocks that make a buffer. */
    /* Per buffer: its blocks are taken from the pool, in the state LENT. */
    bool taken[CST_BUFFERS_MAX];
    /* Per buffer, while it is taken: a fetch wants the blocks back, so no further update enters. */
    bool recalled[CST_BUFFERS_MAX];
    /* Per buffer: commands in flight that read or write it. */
    uint32_t n_commands[CST_BUFFERS_MAX];
};

/* Divide the pool of @rank with these @parts, one for each size class, into what it lends and what
 * it keeps. buffers.n is 0 if it has too few blocks. Pure. */
void cst_lent_memory_divide(const struct cst_layout *layout, uint32_t rank,
                            const struct cst_core_part *parts, struct cst_lent_division *out);

/* Let @reservation, the device reservation number @i of @config, be what its rank can lend. The
 * result has buffers.n = 0 if the pool has too few blocks. CST_EINVAL: there is no such rank, or
 * its pool is not on the accelerator of the device reservation. */
int cst_lent_memory_open(const struct cst_core *core, struct cst_device_reservation *reservation,
                         const struct cst_core_config *config, uint32_t i, struct cst_err *err);

/* The place at @offset of buffer @buffer. */
struct cst_place cst_lent_memory_place(const struct cst_core *core,
                                       const struct cst_device_reservation *reservation,
                                       uint32_t buffer, uint64_t offset);

/* True if an update can enter a buffer now: it is taken and not recalled, or its blocks are
 * empty. */
bool cst_lent_memory_is_available(const struct cst_core *core,
                                  const struct cst_device_reservation *reservation);

/* Move reservation->next on to a buffer that an update can enter, which must exist, and take its
 * blocks. */
void cst_lent_memory_take(struct cst_core *core, struct cst_device_reservation *reservation);

/* Take the blocks of @buffer, which are empty. */
void cst_lent_memory_occupy(struct cst_core *core, struct cst_device_reservation *reservation,
                            uint32_t buffer);

/* Move reservation->next on to a buffer that is taken and not recalled. False: there is none. */
bool cst_lent_memory_join(struct cst_device_reservation *reservation);

/* A command that uses the buffer was issued. */
void cst_lent_memory_issued(struct cst_device_reservation *reservation, uint32_t buffer);

/* The command @flight of a device update is complete, and whatever replaces it was issued. Returns
 * the buffer's blocks to the pool if it was the last command there. */
void cst_lent_memory_done(struct cst_core *core, const struct cst_flight *flight);

/* A fetch of @rank lacks a block of size class @part: recall the commands in one of the buffers
 * made of these blocks, unless one is recalled already. Its blocks are empty again when the update
 * that engines have begun is complete. */
void cst_lent_memory_recall(struct cst_core *core, uint32_t rank, uint32_t part);

/* True if the failure of a command in the buffer is the result of a recall. */
bool cst_lent_memory_is_recalled(const struct cst_core *core, const struct cst_flight *flight);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_lent_memory_check(const struct cst_core *core);

#endif
