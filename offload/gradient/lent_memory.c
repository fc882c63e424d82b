/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of device updates that are made of a pool's blocks. A commit makes nearly all weights in
 * a pool out of date, so most blocks are empty when the updates begin, and stay so until the next
 * forward pass has filled them again.
 *
 * A buffer consists of pairs of adjacent blocks, because an fp32 row of a chunk takes the bytes of
 * two of its blocks. The pairs are always the same ones, counted from the end of a size class.
 *
 *   block  0   1   2   3   4  ...   12   13   14   15 | 16   17  ...  28   29
 *          kept for fetches         |<---- buffer 1 ---->|<---- buffer 0 ----> |
 *
 *   blocks FREE --the first update enters--> LENT --no command is left in the buffer--> FREE
 *
 * A buffer is taken only if all its blocks are free. The fewest blocks with which the rank can run
 * are never lent.
 *
 * A fetch that finds no free block waits for a lent one, instead of evicting weights that are used
 * again. If a worker waits for this fetch, one of the buffers of the size class is recalled. The
 * driver drops the recalled commands that no engine has yet (CST_ACT_RECALL); they fail with
 * CST_ECANCELLED, and the update is made in another buffer that is lent already or, as after a
 * failure of the accelerator, by the chunk's node. So the worker waits at most for the update that
 * is under way in the buffer. All kernels have the same bits, so results do not depend on recalls.
 *
 * While results are copied down, they are in the lent blocks alone. So the driver keeps the slabs
 * with these blocks over its own death, as it keeps device reservations (cst_core_lent_slabs). A
 * new core then takes the blocks again, and copies the results down (core/revival.h). */
#include "offload/gradient/lent_memory.h"

#include "offload/core/core_state.h"

#include <inttypes.h>

/* -- places ------------------------------------------------------------------------------------ */

/* Number of pairs of adjacent blocks that lie in one slab. */
static uint32_t count_pairs(uint32_t n_blocks, uint32_t per_slab)
{
    return n_blocks == 0 ? 0 : n_blocks / per_slab * (per_slab / 2) + n_blocks % per_slab / 2;
}

/* First block of the pair number @pair, counted from the end of the part. */
static uint32_t block_of(const struct cst_part *part, uint32_t pair)
{
    uint32_t from_first = count_pairs(part->n_blocks, part->blocks_per_slab) - 1 - pair;
    uint32_t pairs_per_slab = part->blocks_per_slab / 2;

    return part->first_block + from_first / pairs_per_slab * part->blocks_per_slab +
           from_first % pairs_per_slab * 2;
}

static const struct cst_part *part_of(const struct cst_core *core,
                                      const struct cst_lent_memory *lent)
{
    return &core->ranks[lent->rank].pool.parts[lent->part];
}

/* The @i-th block of @buffer. */
static uint32_t buffer_block(const struct cst_core *core, const struct cst_lent_memory *lent,
                             uint32_t buffer, uint32_t i)
{
    return block_of(part_of(core, lent), buffer * lent->n_pairs + i / 2) + i % 2;
}

struct cst_place cst_lent_memory_place(const struct cst_core *core,
                                       const struct cst_device_reservation *reservation,
                                       uint32_t buffer, uint64_t offset)
{
    const struct cst_lent_memory *lent = &reservation->lent;
    uint64_t block_bytes = part_of(core, lent)->block_bytes;
    uint32_t b = buffer_block(core, lent, buffer, (uint32_t)(offset / block_bytes));
    struct cst_place place = cst_pool_place(&core->ranks[lent->rank].pool, b);

    place.offset += offset % block_bytes;
    return place;
}

/* -- choice of blocks -------------------------------------------------------------------------- */

/* Elements of all chunks that fit a buffer. */
static uint64_t covered(const struct cst_layout *layout, const struct cst_buffers *buffers)
{
    uint64_t n = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        n += cst_buffers_hold(buffers, &layout->chunks[c]) ? layout->chunks[c].n_elems : 0;
    }
    return n;
}

/* What size class @k lends: up to CST_BUFFERS_MAX buffers, but not the fewest blocks with which the
 * rank can run. */
static struct cst_lent_division divide(const struct cst_layout *layout, uint32_t rank, uint32_t k,
                                       const struct cst_core_part *part)
{
    uint64_t block_bytes = 2 * layout->classes[k].capacity;
    uint32_t kept = layout->needs[rank].min_blocks[k];
    struct cst_lent_division out = {.part = k};
    uint32_t n;

    cst_buffers_of_blocks(&out.buffers, layout, block_bytes);
    out.n_pairs = (uint32_t)(out.buffers.bytes / (2 * block_bytes));
    n = out.n_pairs == 0 || part->n_blocks < kept ? 0 : (part->n_blocks - kept) / (2 * out.n_pairs);
    while (n * out.n_pairs > count_pairs(part->n_blocks, part->blocks_per_slab)) {
        n--;
    }
    out.buffers.n = n < CST_BUFFERS_MAX ? n : CST_BUFFERS_MAX;
    return out;
}

/* Take the size class through whose buffers most elements pass per time, as cst_buffers_divide. */
void cst_lent_memory_divide(const struct cst_layout *layout, uint32_t rank,
                            const struct cst_core_part *parts, struct cst_lent_division *out)
{
    uint64_t most = 0;

    *out = (struct cst_lent_division){0};
    for (uint32_t k = 0; k < layout->n_classes; k++) {
        struct cst_lent_division d = divide(layout, rank, k, &parts[k]);

        if (d.buffers.n * covered(layout, &d.buffers) > most) {
            most = d.buffers.n * covered(layout, &d.buffers);
            *out = d;
        }
    }
}

int cst_lent_memory_open(const struct cst_core *core, struct cst_device_reservation *reservation,
                         const struct cst_core_config *config, uint32_t i, struct cst_err *err)
{
    uint32_t rank = config->reservations[i].rank, engine = config->reservations[i].engine;
    struct cst_lent_division division;

    if (rank >= core->world || config->pools[rank].tier != engine || !cst_tier_is_apart(engine)) {
        return cst_err_set(err, CST_EINVAL,
                           "device updates in lent memory: rank %" PRIu32
                           " has no pool on the accelerator of engine %" PRIu32,
                           rank, engine);
    }
    cst_lent_memory_divide(core->layout, rank, config->pools[rank].parts, &division);
    reservation->buffers = division.buffers;
    reservation->lent = (struct cst_lent_memory){
        .on = true, .rank = rank, .part = division.part, .n_pairs = division.n_pairs};
    return CST_OK;
}

/* True if the pool is where it was when the core was opened. A pool that was moved lends nothing.
 */
static bool lends(const struct cst_core *core, const struct cst_device_reservation *reservation)
{
    return reservation->lent.on && reservation->buffers.n > 0 &&
           core->ranks[reservation->lent.rank].pool.tier == reservation->engine;
}

uint32_t cst_core_lent_slabs(const struct cst_core *core, uint32_t rank, uint32_t *first)
{
    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        const struct cst_device_reservation *reservation = &core->device_updates.reservations[r];
        const struct cst_lent_memory *lent = &reservation->lent;
        const struct cst_pool *pool = &core->ranks[rank].pool;

        if (lends(core, reservation) && lent->rank == rank) {
            /* Pairs are counted from the end, so the last one of the last buffer comes first. */
            uint32_t pair = reservation->buffers.n * lent->n_pairs - 1;

            *first = cst_pool_slab(pool, block_of(part_of(core, lent), pair));
            return cst_pool_slab(pool, block_of(part_of(core, lent), 0)) + 1 - *first;
        }
    }
    return 0;
}

/* -- taking and returning ---------------------------------------------------------------------- */

static bool is_empty(const struct cst_core *core, const struct cst_lent_memory *lent,
                     uint32_t buffer)
{
    const struct cst_pool *pool = &core->ranks[lent->rank].pool;

    for (uint32_t i = 0; i < 2 * lent->n_pairs; i++) {
        if (pool->blocks[buffer_block(core, lent, buffer, i)].state != CST_BLOCK_FREE) {
            return false;
        }
    }
    return true;
}

static bool may_enter(const struct cst_core *core, const struct cst_lent_memory *lent,
                      uint32_t buffer)
{
    return lent->taken[buffer] ? !lent->recalled[buffer] : is_empty(core, lent, buffer);
}

bool cst_lent_memory_is_available(const struct cst_core *core,
                                  const struct cst_device_reservation *reservation)
{
    const struct cst_lent_memory *lent = &reservation->lent;
    bool any = false;

    for (uint32_t b = 0; b < reservation->buffers.n && !any; b++) {
        any = may_enter(core, lent, b);
    }
    return any && lends(core, reservation);
}

static void move_blocks(struct cst_core *core, const struct cst_lent_memory *lent, uint32_t buffer,
                        enum cst_block_state state)
{
    for (uint32_t i = 0; i < 2 * lent->n_pairs; i++) {
        cst_block_move(&core->ranks[lent->rank].pool, buffer_block(core, lent, buffer, i), state);
    }
}

void cst_lent_memory_take(struct cst_core *core, struct cst_device_reservation *reservation)
{
    struct cst_lent_memory *lent = &reservation->lent;

    while (!may_enter(core, lent, reservation->next)) {
        reservation->next = (reservation->next + 1) % reservation->buffers.n;
    }
    if (!lent->taken[reservation->next]) {
        cst_lent_memory_occupy(core, reservation, reservation->next);
    }
}

void cst_lent_memory_occupy(struct cst_core *core, struct cst_device_reservation *reservation,
                            uint32_t buffer)
{
    reservation->lent.taken[buffer] = true;
    move_blocks(core, &reservation->lent, buffer, CST_BLOCK_LENT);
}

bool cst_lent_memory_join(struct cst_device_reservation *reservation)
{
    const struct cst_lent_memory *lent = &reservation->lent;

    for (uint32_t i = 0; i < reservation->buffers.n; i++) {
        uint32_t b = (reservation->next + i) % reservation->buffers.n;

        if (lent->taken[b] && !lent->recalled[b]) {
            reservation->next = b;
            return true;
        }
    }
    return false;
}

void cst_lent_memory_issued(struct cst_device_reservation *reservation, uint32_t buffer)
{
    reservation->lent.n_commands[buffer] += reservation->lent.on;
}

void cst_lent_memory_done(struct cst_core *core, const struct cst_flight *flight)
{
    struct cst_lent_memory *lent = &core->device_updates.reservations[flight->rank].lent;

    if (lent->on && --lent->n_commands[flight->buffer] == 0) {
        lent->taken[flight->buffer] = false;
        lent->recalled[flight->buffer] = false;
        move_blocks(core, lent, flight->buffer, CST_BLOCK_FREE);
    }
}

/* -- recalling --------------------------------------------------------------------------------- */

/* Recall the COPYs up to buffer @buffer. The UPDATEs and COPYs down wait for them. */
static void recall(struct cst_core *core, uint32_t r, uint32_t buffer)
{
    for (uint32_t i = 0; i < core->flights.n_slots; i++) {
        const struct cst_flight *flight = &core->flights.slots[i];

        if (flight->ticket != 0 && flight->kind == CST_FLIGHT_DEVICE_UPDATE && !flight->down &&
            flight->rank == r && flight->buffer == buffer) {
            cst_core_recall(core, flight->ticket);
        }
    }
    core->device_updates.reservations[r].lent.recalled[buffer] = true;
}

/* True if the buffer consists of blocks of size class @part of @rank's pool, and is taken. */
static bool is_lent_by(const struct cst_lent_memory *lent, uint32_t buffer, uint32_t rank,
                       uint32_t part)
{
    return lent->on && lent->rank == rank && lent->part == part && lent->taken[buffer];
}

void cst_lent_memory_recall(struct cst_core *core, uint32_t rank, uint32_t part)
{
    uint32_t which = CST_NONE;

    for (uint32_t i = 0; i < core->device_updates.n_reservations * CST_BUFFERS_MAX; i++) {
        const struct cst_lent_memory *lent =
            &core->device_updates.reservations[i / CST_BUFFERS_MAX].lent;
        uint32_t b = i % CST_BUFFERS_MAX;

        if (is_lent_by(lent, b, rank, part)) {
            which = i;
            if (lent->recalled[b]) {
                return; /* Its blocks are about to come back. */
            }
        }
    }
    if (which != CST_NONE) {
        recall(core, which / CST_BUFFERS_MAX, which % CST_BUFFERS_MAX);
    }
}

bool cst_lent_memory_is_recalled(const struct cst_core *core, const struct cst_flight *flight)
{
    const struct cst_lent_memory *lent = &core->device_updates.reservations[flight->rank].lent;

    return lent->on && lent->recalled[flight->buffer];
}

/* -- for tests --------------------------------------------------------------------------------- */

/* Commands in flight that use the buffer. */
static uint32_t count_commands(const struct cst_core *core, uint32_t r, uint32_t buffer)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < core->flights.n_slots; i++) {
        const struct cst_flight *flight = &core->flights.slots[i];

        n += flight->ticket != 0 && cst_flight_is_device_update(flight) && flight->rank == r &&
             flight->buffer == buffer;
    }
    return n;
}

static const char *check_buffer(const struct cst_core *core, uint32_t r, uint32_t buffer)
{
    const struct cst_lent_memory *lent = &core->device_updates.reservations[r].lent;
    const struct cst_pool *pool = &core->ranks[lent->rank].pool;

    if (lent->taken[buffer] != (lent->n_commands[buffer] > 0) ||
        (lent->recalled[buffer] && !lent->taken[buffer])) {
        return "lent blocks are returned with the last command";
    }
    for (uint32_t i = 0; i < 2 * lent->n_pairs; i++) {
        uint32_t b = buffer_block(core, lent, buffer, i);

        if ((pool->blocks[b].state == CST_BLOCK_LENT) != lent->taken[buffer]) {
            return "the blocks of a taken buffer are lent";
        }
    }
    return count_commands(core, r, buffer) == lent->n_commands[buffer]
               ? NULL
               : "commands in lent blocks are counted";
}

const char *cst_lent_memory_check(const struct cst_core *core)
{
    uint32_t n_blocks = 0, n_lent = 0;
    const char *what = NULL;

    for (uint32_t r = 0; r < core->device_updates.n_reservations; r++) {
        const struct cst_device_reservation *reservation = &core->device_updates.reservations[r];

        for (uint32_t b = 0; b < reservation->buffers.n && reservation->lent.on && what == NULL;
             b++) {
            what = check_buffer(core, r, b);
            n_blocks += reservation->lent.taken[b] ? 2 * reservation->lent.n_pairs : 0;
        }
    }
    for (uint32_t rank = 0; rank < core->world; rank++) {
        n_lent += cst_pool_count(&core->ranks[rank].pool, CST_BLOCK_LENT);
    }
    return what != NULL ? what : n_blocks != n_lent ? "every lent block is in a buffer" : NULL;
}
