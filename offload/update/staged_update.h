/* SPDX-License-Identifier: Apache-2.0 */
/* Staged updates (staged_update.c). Owns the device reservations, and the order in which
 * chunks get them. Called by core.c, update, update_end, overlap and commit. */
#ifndef CST_STAGED_UPDATE_H
#define CST_STAGED_UPDATE_H

#include "offload/layout/buffers.h"
#include "offload/books/chunk_update.h"
#include "offload/base/core_config.h"
#include "offload/base/flight.h"
#include "offload/gradient/kept_gradients.h"
#include "offload/gradient/lent_memory.h"
#include "offload/update/staged_ahead.h"

struct cst_core;

/* A device reservation is given up after this many failures. */
#define CST_STAGED_UPDATE_MAX_FAILURES 3
/* A COPY down after a device update is tried this many times. */
#define CST_STAGED_UPDATE_MAX_TRIES 3
#define CST_STAGED_UPDATE_COPIES_DOWN (1 + CST_UPDATE_APART)
/* Commands of one device update. */
#define CST_STAGED_UPDATE_COMMANDS (2 + CST_UPDATE_STATES + 1 + CST_STAGED_UPDATE_COPIES_DOWN)

/* Memory for updates. Its buffers are used in turn. */
struct cst_device_reservation {
    uint32_t engine; /* As in struct cst_core_device_reservation. */
    /* The number of the tier whose states are always updated here. If it is lost, so are they. */
    uint32_t home;
    uint32_t segment;            /* Not used if the memory is lent. */
    struct cst_lent_memory lent; /* The buffers are blocks of a pool. */
    struct cst_buffers buffers;
    struct cst_kept_gradients kept;
    uint32_t n_failures; /* Failed commands of device updates. */
    /* The device reservation is not used any more: it had too many failures, or its engine is
     * lost. */
    bool given_up;
    uint32_t next; /* Buffer that the next update uses. */
    /* Per buffer: the last COPYs out of it; 0: none. */
    uint64_t down[CST_BUFFERS_MAX][CST_STAGED_UPDATE_COPIES_DOWN];
    /* Per buffer: the chunk whose UPDATE was completed there last. */
    uint32_t user[CST_BUFFERS_MAX];
    struct cst_staged_ahead ahead[CST_BUFFERS_MAX]; /* Per buffer: what was brought before. */
};

struct cst_device_updates {
    struct cst_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n_reservations;
    uint32_t
        next_reservation; /* Device reservation at which the search for the next update begins. */
    uint32_t interleave;  /* k as set by the configuration or cst_core_set_interleave. */
    uint32_t interleave_now; /* k of the last issued updates; 0: none is a device update. */
    /* Per node: updates of its chunks issued since the current order of updates began; owned. */
    uint32_t *in_order;
    bool order_ended; /* The order of updates has ended: the next update begins a new one. */
};

/* CST_EINVAL: too many device reservations; or a chunk has its states in a tier of its own without
 * a device reservation that fits it. CST_ENOMEM. The caller calls cst_device_updates_close in any
 * case. */
int cst_device_updates_open(struct cst_core *core, const struct cst_core_config *config,
                            struct cst_err *err);

/* Free the books of all device reservations. */
void cst_device_updates_close(struct cst_core *core);

/* Copy @row of chunk @c, states as they are after the update with the mark @mark, up to the next
 * buffer of the device reservation, as @named, with a flight of the kind @kind. Returns the ticket.
 */
uint64_t cst_staged_update_copy_up(struct cst_core *core,
                                   const struct cst_device_reservation *reservation, uint32_t c,
                                   enum cst_row row, enum cst_row named, uint64_t mark,
                                   enum cst_flight_kind kind);

/* Issue the device update @what in the device reservation @reservation. */
void cst_staged_update_update(struct cst_core *core, uint32_t reservation,
                              const struct cst_update *what);

/* The commands of @chunk's device update were recalled, and nothing has been copied down: issue
 * them again in another buffer of its device reservation. False: no update can enter one. */
bool cst_staged_update_move(struct cst_core *core, uint32_t chunk);

/* The UPDATE of @chunk is done: its results are being copied back. */
void cst_staged_update_done(struct cst_core *core, uint32_t chunk);

/* The device update in buffer @buffer of device reservation @reservation whose results are being
 * copied back; NULL: none. */
const struct cst_update *cst_staged_update_copying(const struct cst_core *core,
                                                   uint32_t reservation, uint32_t buffer);

/* The results of @what are in the buffer, from which an earlier core was copying them back: issue
 * these COPYs again. No update of the chunk may be in flight. */
void cst_staged_update_copy_back(struct cst_core *core, uint32_t reservation, uint32_t buffer,
                                 const struct cst_update *what);

/* The device update of @chunk failed and nothing has been copied down: the next update in its
 * buffer waits for nothing. */
void cst_staged_update_vacate(struct cst_core *core, uint32_t chunk);

/* A command of a device update failed in the device reservation @reservation. */
void cst_staged_update_count_failure(struct cst_core *core, uint32_t reservation);

/* Use the device reservation @reservation for no further updates. */
void cst_staged_update_give_up(struct cst_core *core, uint32_t reservation);

/* Issue again the COPY down after a device update that @flight was and that failed. */
void cst_staged_update_copy_again(struct cst_core *core, const struct cst_flight *flight);

#endif
