/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions of the core: open, step, statistics. cst_core_step checks what all parts
 * rely on, and passes the event on. */
#include "offload/landing.h"
#include "offload/updates.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What each kind of event requires before it is passed on. */
enum needs {
    NEEDS_NOTHING = 0,
    NEEDS_RANK = 1,    /* rank < world. */
    NEEDS_ATTEMPT = 2, /* The rank takes part in the running attempt. */
    NEEDS_CHUNK = 4,   /* chunk < n_chunks. */
    NEEDS_REQUEST = 8, /* Memory for a request, which may have to wait. */
    NEEDS_GROUP = 16,  /* The rank is in the chunk's group. */
    NEEDS_GRAD = 32,   /* The chunk is not frozen. */
};

#define IN_STEP (NEEDS_RANK | NEEDS_ATTEMPT | NEEDS_REQUEST)

static void on_done(struct cst_core *core, const struct cst_event *event);

static void on_tick(struct cst_core *core, const struct cst_event *event)
{
    (void)event;
    cst_ranks_expire(core);
}

static const struct {
    unsigned needs;
    void (*digest)(struct cst_core *core, const struct cst_event *event);
} kinds[] = {
    [CST_EV_ATTACH] = {NEEDS_RANK, cst_ranks_attach},
    [CST_EV_HANGUP] = {NEEDS_RANK, cst_ranks_hangup},
    [CST_EV_DEAD] = {NEEDS_RANK, cst_ranks_dead},
    [CST_EV_LEAVE] = {NEEDS_RANK | NEEDS_REQUEST, cst_ranks_leave},
    [CST_EV_SYNC] = {NEEDS_RANK | NEEDS_REQUEST, cst_ranks_sync},
    [CST_EV_FETCH_WEIGHT] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP, cst_fetch_weight},
    [CST_EV_FETCH_GRAD] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP | NEEDS_GRAD, cst_fetch_grad},
    [CST_EV_RELEASE] = {IN_STEP | NEEDS_CHUNK, cst_residency_release},
    [CST_EV_HAND_IN] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP | NEEDS_GRAD, cst_collection_hand_in},
    [CST_EV_ACCUMULATE] = {IN_STEP, cst_commit_accumulate},
    [CST_EV_WANT] = {IN_STEP | NEEDS_CHUNK, cst_fetch_want},
    [CST_EV_PREFETCH] = {IN_STEP | NEEDS_CHUNK | NEEDS_GROUP, cst_load_prefetch},
    [CST_EV_EVICT] = {IN_STEP | NEEDS_CHUNK, cst_residency_evict},
    [CST_EV_PREPARE] = {IN_STEP, cst_prepare},
    [CST_EV_STEP] = {IN_STEP, cst_commit_step},
    [CST_EV_READ] = {NEEDS_REQUEST, cst_states_read},
    [CST_EV_WRITE] = {NEEDS_REQUEST, cst_states_write},
    [CST_EV_CANCEL] = {NEEDS_RANK | NEEDS_REQUEST, cst_ranks_cancel},
    [CST_EV_DONE] = {NEEDS_NOTHING, on_done},
    [CST_EV_TICK] = {NEEDS_NOTHING, on_tick},
    [CST_EV_NODE_DOWN] = {NEEDS_NOTHING, cst_device_loss_of_node},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

/* -- open ------------------------------------------------------------------------------------- */

static int open_rank(struct cst_core *core, const struct cst_core_config *config, uint32_t rank,
                     struct cst_err *err)
{
    struct cst_rank *r = &core->ranks[rank];
    const struct cst_core_pool *pool = &config->pools[rank];

    r->sync = CST_NO_REQUEST;
    r->step = CST_NO_REQUEST;
    for (uint32_t k = 0; k < core->layout->n_classes; k++) {
        const struct cst_core_part *part = &pool->parts[k];
        const struct cst_layout_class *class = &core->layout->classes[k];
        uint32_t least = core->layout->needs[rank].min_blocks[k];

        if (part->n_blocks < least || (part->n_blocks > 0 && part->blocks_per_slab == 0)) {
            return cst_err_set(err, CST_EINVAL,
                               "pool of rank %" PRIu32 ": %" PRIu32 " blocks of %" PRIu64
                               " bytes in slabs of %" PRIu32 ", the model needs %" PRIu32,
                               rank, part->n_blocks, 2 * class->capacity, part->blocks_per_slab,
                               least);
        }
    }
    if (cst_trace_init(&r->trace, core->layout, core->model, rank) != CST_OK ||
        cst_pool_init(&r->pool, pool, core->layout, &r->trace, core->policy.eviction) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the pool of rank %" PRIu32, rank);
    }
    core->everybody |= 1ull << rank;
    core->n_blocks += r->pool.n_blocks;
    return CST_OK;
}

/* True if the rank's pool is on a GPU into which engines load weights, and on no GPU of a lower
 * rank. */
static bool has_new_gpu(const struct cst_core *core, uint32_t rank)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;

    for (uint32_t before = 0; before < rank; before++) {
        const struct cst_pool *other = &core->ranks[before].pool;

        if (other->engine == pool->engine && !other->worker_copies) {
            return false;
        }
    }
    return pool->engine != 0 && !pool->worker_copies;
}

static uint32_t count_gpus(const struct cst_core *core)
{
    uint32_t n = 0;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        n += has_new_gpu(core, rank);
    }
    return n;
}

int cst_core_may_move(const struct cst_core *core, uint32_t rank, bool gone, struct cst_err *err)
{
    const struct cst_rank *r = &core->ranks[rank];

    if (r->state == CST_RANK_ATTACHED ||
        cst_pool_count(&r->pool, CST_BLOCK_FREE) < r->pool.n_blocks) {
        return cst_err_set(err, CST_EBUSY, "the pool of rank %" PRIu32 " is still in use", rank);
    }
    for (uint32_t other = 0; gone && other < core->world; other++) {
        if (core->ranks[other].pool.engine == r->pool.engine &&
            core->ranks[other].state == CST_RANK_ATTACHED &&
            core->ranks[other].gone.status == CST_OK) {
            return cst_err_set(err, CST_EBUSY,
                               "the pool of rank %" PRIu32
                               " is on the same accelerator as that of rank %" PRIu32
                               ", which is attached",
                               rank, other);
        }
    }
    return CST_OK;
}

void cst_core_move_pool(struct cst_core *core, uint32_t rank, const struct cst_core_pool *pool)
{
    core->ranks[rank].pool.engine = pool->engine;
    core->ranks[rank].pool.worker_copies = pool->worker_copies;
    core->n_gpus = count_gpus(core);
}

/* Number of nodes whose engines have chunks. */
static uint32_t count_nodes(const struct cst_layout *layout)
{
    uint32_t n = 1;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        n = layout->chunks[c].node < n ? n : layout->chunks[c].node + 1;
    }
    return n;
}

static void open_chunks(struct cst_core *core)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_layout_chunk *at = &core->layout->chunks[c];

        core->chunks[c].ranks = at->ranks & core->everybody;
        core->chunks[c].has_states = cst_pattern(at->pattern)->has_states;
        core->chunks[c].staged_rank = CST_NONE;
        core->chunks[c].room = CST_NONE;
        core->chunks[c].device = at->device;
        core->chunks[c].held = CST_NONE;
        core->chunks[c].evicted_rank = CST_NONE;
        core->n_trained += core->chunks[c].has_states;
    }
}

/* Check that a job can be as @config says. */
static int check_config(const struct cst_core_config *config, struct cst_err *err)
{
    if (config->world == 0 || config->world > CST_CORE_MAX_WORLD) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu32 " ranks: 1..%d are allowed", config->world,
                           CST_CORE_MAX_WORLD);
    }
    if (config->micro_batches > 1 && config->layout->grad_bytes != 4) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " micro-batches a step need grad rows of fp32",
                           config->micro_batches);
    }
    if (config->policy.overlap != CST_OVERLAP_COMMIT && !config->layout->states.two_weights) {
        return cst_err_set(err, CST_EINVAL,
                           "early and delayed updates need a second weight row in the layout");
    }
    return cst_weight_row_admit(config, err);
}

int cst_core_open(struct cst_core **out, const struct cst_core_config *config, struct cst_err *err)
{
    struct cst_core *core;
    int status = check_config(config, err);

    if (status != CST_OK) {
        return status;
    }
    core = calloc(1, sizeof *core);
    if (core == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a job");
    }
    core->model = config->model;
    core->layout = config->layout;
    core->arena_segments = config->arena_segments;
    core->table_segment = config->table_segment;
    core->world = config->world;
    core->n_chunks = config->layout->n_chunks;
    core->peer_timeout_ns = config->peer_timeout_ns;
    core->policy = config->policy;
    core->micro_batches = config->micro_batches == 0 ? 1 : config->micro_batches;
    core->grad_fp32 = config->layout->grad_bytes == 4;
    core->two_weights = config->layout->states.two_weights;
    core->step = config->step;
    core->adam_step = config->step;
    core->last_ticket = config->first_ticket == 0 ? 0 : config->first_ticket - 1;
    cst_requests_init(&core->requests);
    cst_flights_init(&core->flights);
    core->ranks = calloc(core->world, sizeof *core->ranks);
    core->chunks = calloc(core->n_chunks, sizeof *core->chunks);
    core->order = calloc(core->n_chunks, sizeof *core->order);
    core->n_nodes = count_nodes(core->layout);
    core->in_order = calloc(core->n_nodes, sizeof *core->in_order);
    if (core->ranks == NULL || core->chunks == NULL || core->order == NULL ||
        core->in_order == NULL) {
        status = cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " chunks", core->n_chunks);
    }
    for (uint32_t rank = 0; rank < core->world && status == CST_OK; rank++) {
        status = open_rank(core, config, rank, err);
    }
    if (status == CST_OK) {
        core->n_gpus = count_gpus(core);
        status = cst_device_updates_open(core, config, err);
    }
    if (status == CST_OK && cst_landing_open(core) != CST_OK) {
        status = cst_err_set(err, CST_ENOMEM, "no memory for landings");
    }
    if (status != CST_OK) {
        cst_core_close(core);
        return status;
    }
    open_chunks(core);

    *out = core;
    return CST_OK;
}

void cst_core_close(struct cst_core *core)
{
    if (core == NULL) {
        return;
    }
    for (uint32_t rank = 0; core->ranks != NULL && rank < core->world; rank++) {
        cst_pool_close(&core->ranks[rank].pool);
        cst_trace_close(&core->ranks[rank].trace);
    }
    cst_device_updates_close(core);
    cst_requests_close(&core->requests);
    cst_flights_close(&core->flights);
    free(core->ranks);
    free(core->chunks);
    free(core->order);
    free(core->in_order);
    cst_landing_close(core);
    free(core);
}

/* -- memory ----------------------------------------------------------------------------------- */

static int reserve_actions(struct cst_actions *actions, size_t n)
{
    struct cst_action *v;

    if (n <= actions->capacity) {
        return CST_OK;
    }
    v = realloc(actions->v, n * sizeof *v);
    if (v == NULL) {
        return CST_ENOMEM;
    }
    actions->v = v;
    actions->capacity = n;
    return CST_OK;
}

int cst_core_reserve(struct cst_core *core, struct cst_actions *actions)
{
    /* Each waiting request can cause a reply, a load and a spill; each chunk a reduction or an
     * update; each rank some prefetches, a reply and a log line. */
    size_t fixed = 2 * (size_t)core->n_chunks +
                   (size_t)core->world * (CST_LAYOUT_MAX_CLASSES * CST_PREFETCH_IN_FLIGHT + 2) + 16;
    /* A write of states on an accelerator has four parts. */
    size_t in_flight = 4 * (size_t)core->n_chunks + core->n_blocks + 64;
    uint32_t gpus = cst_multi_gpu_load_most(core);
    int status = cst_requests_reserve(&core->requests);

    if (core->n_rooms > 0) {
        fixed += CST_DEVICE_UPDATE_COMMANDS * (size_t)core->n_chunks;
        in_flight += CST_DEVICE_UPDATE_COMMANDS * (size_t)core->n_chunks;
    }
    /* A gathered block receives a copy from each GPU, and in each group all blocks but one are
     * foreseen. */
    fixed += (size_t)core->world * CST_LAYOUT_MAX_CLASSES * CST_PREFETCH_IN_FLIGHT * 2 * gpus;
    in_flight += core->n_blocks * gpus;

    if (status == CST_OK) {
        status = reserve_actions(actions, 3 * (size_t)core->requests.capacity + fixed);
    }
    if (status == CST_OK) {
        status = cst_flights_reserve(&core->flights,
                                     (uint32_t)(in_flight + 4 * core->requests.capacity));
    }
    return status;
}

/* -- completions ------------------------------------------------------------------------------ */

static void on_done(struct cst_core *core, const struct cst_event *event)
{
    struct cst_flight flight;

    if (!cst_flights_take(&core->flights, event->ticket, &flight)) {
        cst_core_log(core, CST_EINTERNAL, "completion of a ticket that no command has: %" PRIu64,
                     event->ticket);
        return;
    }
    cst_instant_done(core, &flight);
    switch (flight.kind) {
    case CST_FLIGHT_LOAD:
        cst_load_done(core, &flight, event);
        break;
    case CST_FLIGHT_PIECE:
        /* The copy has kept both blocks LOADING: the one it read and the one it wrote. */
        cst_multi_gpu_load_done(core, flight.peer, flight.peer_block, event);
        cst_multi_gpu_load_done(core, flight.rank, flight.block, event);
        break;
    case CST_FLIGHT_STAGE:
        cst_spill_done(core, &flight, event);
        break;
    case CST_FLIGHT_LANDING:
        cst_landing_done(core, &flight, event);
        break;
    case CST_FLIGHT_REDUCE:
        cst_sum_done(core, &flight, event);
        break;
    case CST_FLIGHT_NORM:
        cst_commit_normed(core, &flight, event);
        break;
    case CST_FLIGHT_UPDATE:
    case CST_FLIGHT_STATES:
    case CST_FLIGHT_AWAY:
    case CST_FLIGHT_DEVICE_UPDATE:
        cst_update_end(core, &flight, event);
        break;
    case CST_FLIGHT_HELD:
        cst_update_end_kept(core, &flight, event);
        break;
    /* The WRITE that waits for the part fails with it. */
    case CST_FLIGHT_PART:
        break;
    case CST_FLIGHT_READ:
        cst_states_read_done(core, &flight, event);
        break;
    case CST_FLIGHT_WRITE:
        cst_states_written(core, &flight, event);
        break;
    }
}

/* -- facts ------------------------------------------------------------------------------------ */

/* Issue the next sum of the chunk, if there is something to sum. If its gradient is complete, the
 * update can begin early, and the commit may have waited for nothing else. */
static void advance(struct cst_core *core, uint32_t c)
{
    switch (cst_collection_next(core, c)) {
    case CST_COLLECTION_WAITS:
        break;
    case CST_COLLECTION_SUM:
        if (!cst_overlap_fuse(core, c)) {
            cst_sum_add(core, c);
        }
        break;
    case CST_COLLECTION_ZERO:
        cst_sum_add(core, c); /* A sum of no contributions writes zeros. */
        break;
    case CST_COLLECTION_COMPLETE:
        cst_collection_complete(core, c);
        cst_overlap_complete(core, c);
        cst_commit_close(core);
        break;
    }
}

static void route(struct cst_core *core, const struct cst_event *event, const struct cst_fact *fact)
{
    switch (fact->kind) {
    case CST_FACT_GRADIENT:
        advance(core, fact->chunk);
        break;
    case CST_FACT_RANK_WENT_ON:
        for (uint32_t c = 0; c < core->n_chunks; c++) {
            advance(core, c);
        }
        break;
    case CST_FACT_WEIGHTS_WRITTEN:
        cst_residency_updated(core, fact->chunk, fact->ticket, event);
        break;
    case CST_FACT_POOLS_LOST:
        cst_device_loss_of_pools(core, fact->engine, event, fact->needed);
        break;
    case CST_FACT_JOB_FAILED:
        cst_ranks_fail(core, &fact->why);
        break;
    }
}

/* -- step ------------------------------------------------------------------------------------- */

/* False: @event was refused. */
static bool admit(struct cst_core *core, const struct cst_event *event)
{
    unsigned needs = kinds[event->kind].needs;

    if ((needs & NEEDS_RANK) != 0 && event->rank >= core->world) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "rank %" PRIu32 ": the job has %" PRIu32 " ranks", event->rank,
                        core->world);
        return false;
    }
    if ((needs & NEEDS_ATTEMPT) != 0 && !cst_ranks_admit(core, event)) {
        return false;
    }
    if ((needs & NEEDS_CHUNK) != 0 && event->chunk >= core->n_chunks) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "chunk %" PRIu32 ": the job has %" PRIu32 " chunks", event->chunk,
                        core->n_chunks);
        return false;
    }
    return (needs & NEEDS_GROUP) == 0 || cst_group_admit(core, event, (needs & NEEDS_GRAD) != 0);
}

void cst_core_step(struct cst_core *core, const struct cst_event *event,
                   struct cst_actions *actions)
{
    struct cst_fact fact;

    actions->n = 0;
    core->actions = actions;
    core->now = event->now;
    if ((size_t)event->kind >= N_KINDS) {
        cst_core_refuse(core, event->tag, CST_EUNSUPPORTED, "event %d", (int)event->kind);
        return;
    }
    /* Memory for what waits and what is in flight was reserved when its request was accepted, so
     * only a request can run out of memory. Other events must be processed in any case. */
    if (cst_core_reserve(core, actions) != CST_OK &&
        (kinds[event->kind].needs & NEEDS_REQUEST) != 0) {
        if (actions->capacity > 0) {
            cst_core_refuse(core, event->tag, CST_ENOMEM, "no memory for the request");
        }
        return;
    }
    if (admit(core, event)) {
        cst_instant_begin(core, event);
        kinds[event->kind].digest(core, event);
        while (cst_facts_take(&core->facts, &fact)) {
            route(core, event, &fact);
        }
        cst_ranks_start(core);
        cst_fetch_pump(core);
    }
    core->actions = NULL;
}

/* -- statistics and job table ----------------------------------------------------------------- */

void cst_core_rank_stats(const struct cst_core *core, uint32_t rank, struct cst_rank_stats *out)
{
    const struct cst_rank *r = &core->ranks[rank];

    *out = (struct cst_rank_stats){
        .state = r->state,
        .hits = r->hits,
        .misses = r->misses,
        .late = r->late,
        .weight_wait_ns = r->weight_wait_ns,
        .prefetches = r->prefetches,
        .evictions = r->evictions,
        .surprises = r->trace.surprises,
        .waits = r->waits,
        .micro = r->micro,
        .bytes_up = r->bytes_up,
        .bytes_down = r->bytes_down,
        .bytes_peer = r->bytes_peer,
    };
    cst_pool_books(&r->pool, &out->books);
    for (uint32_t k = 0; k < r->pool.n_parts; k++) {
        cst_pool_part_books(&r->pool, k, &out->class_books[k]);
    }
}

void cst_core_stats(const struct cst_core *core, struct cst_core_stats *out)
{
    *out = (struct cst_core_stats){
        .phase = core->phase,
        .initialised = core->initialised,
        .closing = core->closing,
        .attempt = core->attempt,
        .step = core->step,
        .n_skipped = core->n_skipped,
        .n_overflows = core->n_overflows,
        .adam_step = core->adam_step,
        .commands_in_flight = core->flights.n,
        .n_dropped = core->n_dropped,
        .last_loss = core->last_loss,
        .last_grad_norm = core->last_grad_norm,
        .last_step_ns = core->last_step_ns,
        .interleave = core->interleave_now,
        .n_updates = core->n_updates,
        .n_device_updates = core->n_device_updates,
    };
    cst_exposure_stats(core, out);
    for (uint32_t r = 0; r < core->n_rooms; r++) {
        out->n_room_failures += core->rooms[r].n_failures;
        out->n_rooms_given_up += core->rooms[r].given_up;
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_chunk *chunk = &core->chunks[c];

        out->chunks_updating += !cst_chunk_update_is_over(chunk);
        out->chunks_ahead += chunk->ahead;
        out->chunks_reducing += chunk->reduce_ticket != 0;
        out->chunks_clean += cst_chunk_update_is_over(chunk) && chunk->n_writes == 0 &&
                             chunk->over == CST_OVER_WEIGHTS;
    }
}

static void write_chunk(const struct cst_core_config *config, uint32_t c,
                        struct cst_table_chunk *to)
{
    const struct cst_layout_chunk *from = &config->layout->chunks[c];

    to->n_elems = from->n_elems;
    for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
        const struct cst_layout_row *row = &from->rows[r];

        if (row->segment != CST_LAYOUT_NO_ROW) {
            to->rows[r].segment = config->arena_segments[row->segment];
            to->rows[r].offset = row->offset;
        }
    }
    if (from->other_weight.segment != CST_LAYOUT_NO_ROW) {
        to->other_weight.segment = config->arena_segments[from->other_weight.segment];
        to->other_weight.offset = from->other_weight.offset;
    }
}

void cst_core_write_table(const struct cst_core_config *config, struct cst_table_header *table)
{
    const struct cst_layout *layout = config->layout;
    struct cst_table_chunk *chunks = cst_table_chunks(table);
    struct cst_table_span *spans = cst_table_spans(table);
    uint32_t n_spans = 0;

    table->grad_bytes = layout->grad_bytes;
    table->optimizer = (uint32_t)layout->states.optimizer;
    table->moments = (uint32_t)layout->states.moments;
    table->rounding = (uint32_t)config->rounding;
    table->seed = config->seed;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *from = &layout->chunks[c];

        chunks[c] = (struct cst_table_chunk){.first_span = n_spans};
        write_chunk(config, c, &chunks[c]);
        if (!cst_pattern(from->pattern)->has_states) {
            continue;
        }
        chunks[c].n_spans = from->n_tensors;
        for (uint32_t i = from->first_tensor; i < from->first_tensor + from->n_tensors; i++) {
            const struct cst_layout_tensor *t = &config->model->tensors[layout->order[i]];

            spans[n_spans++] = (struct cst_table_span){.start = t->offset,
                                                       .n_elems = t->n_elems,
                                                       .first_tile = t->first_tile,
                                                       .lr_scale = t->lr_scale,
                                                       .decay_scale = t->decay_scale};
        }
    }
}

void cst_core_set_prefetch(struct cst_core *core, uint32_t depth)
{
    core->policy.prefetch_depth = depth;
}
