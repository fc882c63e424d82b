/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of weights into the pools of several GPUs at once. Each GPU loads one piece over its own
 * link to the host and copies the other pieces over the links between GPUs. So n ranks in step read
 * a chunk from host memory once, not n times, and it is there in 1/n of the time.
 *
 *   weight row  | piece 0 | piece 1 |      LOAD:  row -> own block, each over its own link
 *                    |         |           PIECE: peer's block -> own block, after the peer's LOAD
 *   block of 0  [ piece 0 | piece 1 ] <--- from rank 1's block
 *   block of 1  [ piece 0 | piece 1 ] <--- from rank 0's block
 *
 * A rank that loads a chunk includes the ranks that expect the chunk and have a block for it. A
 * block stays LOADING until all copies to and from it are done, so nothing overwrites what a peer
 * still reads. After a failure each GPU loads the chunk alone, and nothing is gathered any more.
 * The loss of a GPU is not such a failure: the others go on gathering, and the lost one does when
 * it is back. */
#include "offload/weights/multi_gpu_load.h"

#include "offload/core/core_state.h"
#include "offload/weights/eviction.h"
#include "offload/weights/residency.h"
#include "offload/books/weight_row.h"

#include <inttypes.h>

#define PIECE_ALIGN 4096u /* In bytes. */

struct member {
    uint32_t rank;
    uint32_t block;
    uint64_t first, bytes; /* The member's piece of the row. */
    uint64_t ticket;       /* Ticket of the member's LOAD. */
};

struct group {
    uint32_t chunk;
    enum cst_priority priority;
    struct member v[CST_GATHER_MAX];
    uint32_t n;
};

uint32_t cst_multi_gpu_load_most(const struct cst_core *core)
{
    uint32_t n = core->n_gpus;

    return core->policy.gather_bytes == 0 || n < 2 ? 0 : n < CST_GATHER_MAX ? n : CST_GATHER_MAX;
}

/* -- members ------------------------------------------------------------------------------- */

/* True if @pool is on another GPU than the pools of the group, and can exchange pieces with all of
 * them. */
static bool fits(const struct cst_core *core, const struct group *group,
                 const struct cst_pool *pool)
{
    for (uint32_t i = 0; i < group->n; i++) {
        if (!cst_pool_can_exchange(pool, &core->ranks[group->v[i].rank].pool)) {
            return false;
        }
    }
    return true;
}

static bool can_join(const struct cst_core *core, const struct group *group, uint32_t rank)
{
    const struct cst_rank *r = &core->ranks[rank];

    /* A rank that has asked for the step fetches nothing more of it. */
    return cst_tier_is_apart(r->pool.tier) && !r->pool.worker_copies && r->joined && !r->stepped &&
           cst_set_has(core->chunks[group->chunk].ranks, rank) &&
           r->pool.weight_of[group->chunk] == CST_NONE && fits(core, group, &r->pool);
}

static void invite(struct cst_core *core, struct group *group, uint32_t most)
{
    for (uint32_t rank = 0; rank < core->world && group->n < most; rank++) {
        uint32_t b = can_join(core, group, rank)
                         ? cst_eviction_take_expected(core, rank, group->chunk)
                         : CST_NONE;

        if (b != CST_NONE) {
            group->v[group->n++] = (struct member){.rank = rank, .block = b};
        }
    }
}

/* -- commands ------------------------------------------------------------------------------- */

static void cut(struct group *group, uint64_t bytes)
{
    uint64_t each = bytes / group->n / PIECE_ALIGN * PIECE_ALIGN;

    for (uint32_t i = 0; i < group->n; i++) {
        group->v[i].first = i * each;
        group->v[i].bytes = i + 1 < group->n ? each : bytes - i * each;
    }
}

static struct cst_place place_in(const struct cst_core *core, const struct member *member,
                                 uint64_t first)
{
    struct cst_place place = cst_pool_place(&core->ranks[member->rank].pool, member->block);

    place.offset += first;
    return place;
}

static struct cst_command *copy_to(struct cst_core *core, const struct group *group,
                                   const struct member *to, const struct member *piece,
                                   struct cst_flight *flight)
{
    struct cst_command *copy =
        cst_core_command(core, CST_COMMAND_COPY, core->ranks[to->rank].pool.tier, flight);

    copy->priority = group->priority;
    copy->dst[copy->n_dst++] = place_in(core, to, piece->first);
    copy->bytes = piece->bytes;
    cst_block_add_piece(&core->ranks[to->rank].pool, to->block);
    return copy;
}

static void load_own(struct cst_core *core, const struct group *group, struct member *own)
{
    struct cst_rank *rank = &core->ranks[own->rank];
    struct cst_flight flight = {
        .kind = CST_FLIGHT_LOAD, .rank = own->rank, .block = own->block, .chunk = group->chunk};
    struct cst_command *copy = copy_to(core, group, own, own, &flight);

    copy->src[copy->n_src++] =
        cst_core_row_place(core, group->chunk, cst_weight_row_side(core, group->chunk), 0);
    copy->src[0].offset += own->first;
    cst_command_after(copy, core->chunks[group->chunk].update.weight_ticket);
    own->ticket = copy->ticket;
    rank->bytes_up += copy->bytes;
    cst_block_load(&rank->pool, own->block, copy->ticket);
}

static void get_from(struct cst_core *core, const struct group *group, const struct member *to,
                     const struct member *from)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_PIECE,
                                .rank = to->rank,
                                .block = to->block,
                                .peer = from->rank,
                                .peer_block = from->block,
                                .chunk = group->chunk};
    struct cst_command *copy = copy_to(core, group, to, from, &flight);

    copy->src[copy->n_src++] = place_in(core, from, from->first);
    cst_command_after(copy, from->ticket);
    core->ranks[to->rank].bytes_peer += copy->bytes;
    cst_block_add_piece(&core->ranks[from->rank].pool, from->block);
}

bool cst_multi_gpu_load(struct cst_core *core, uint32_t rank, uint32_t chunk, uint32_t b,
                        enum cst_priority priority)
{
    uint64_t bytes = cst_layout_weight_bytes(&core->layout->chunks[chunk]);
    uint64_t least =
        core->policy.gather_bytes > PIECE_ALIGN ? core->policy.gather_bytes : PIECE_ALIGN;
    uint32_t most = cst_multi_gpu_load_most(core);
    struct group group = {
        .chunk = chunk, .priority = priority, .v = {{.rank = rank, .block = b}}, .n = 1};

    /* Pieces are copied, not converted, so the row must hold weights. */
    if (most < 2 || !cst_tier_is_apart(core->ranks[rank].pool.tier) || bytes < 2 * least ||
        core->chunks[chunk].weight.holds != CST_HOLDS_WEIGHTS) {
        return false;
    }
    if (bytes / least < most) {
        most = (uint32_t)(bytes / least);
    }
    invite(core, &group, most);
    if (group.n == 1) {
        return false;
    }
    cut(&group, bytes);
    for (uint32_t i = 0; i < group.n; i++) {
        load_own(core, &group, &group.v[i]);
    }
    for (uint32_t i = 0; i < group.n; i++) {
        for (uint32_t j = 0; j < group.n; j++) {
            if (j != i) {
                get_from(core, &group, &group.v[i], &group.v[j]);
            }
        }
    }
    return true;
}

/* -- completions ------------------------------------------------------------------------------ */

/* True if the failure is one of gathering. A command that waited for a failed one is cancelled and
 * does not count: the failed command reports the cause. */
static bool is_of_gathering(const struct cst_event *event)
{
    return event->status != CST_OK && event->status != CST_ECANCELLED &&
           !cst_event_engine_lost(event);
}

void cst_multi_gpu_load_done(struct cst_core *core, uint32_t rank, uint32_t b,
                             const struct cst_event *event)
{
    struct cst_pool *pool = &core->ranks[rank].pool;

    if (is_of_gathering(event) && core->policy.gather_bytes != 0) {
        cst_core_log(core, event->status,
                     "the GPUs could not load chunk %" PRIu32
                     " together: %s; each GPU loads everything itself from now on",
                     pool->blocks[b].chunk, cst_event_words(event));
        core->policy.gather_bytes = 0;
    }
    if (event->status != CST_OK) {
        cst_block_drop(pool, b); /* The fetches that wait for the block load the chunk again. */
    }
    if (cst_block_end_piece(pool, b)) {
        struct cst_event whole = *event;

        whole.status = CST_OK;
        cst_residency_end_load(core, rank, b, &whole);
    }
}
