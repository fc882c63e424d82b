/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes a core, moves a pool, and writes the job table. */
#include "offload/core/core_state.h"
#include "offload/update/staged_update.h"
#include "offload/gradient/landing.h"
#include "offload/gradient/drift.h"
#include "offload/books/weight_row.h"
#include "proto/muon.h"

#include <inttypes.h>
#include <stdlib.h>

/* The ranks that run the same operators as @rank. Operators of sparse tensors, which may be left
 * out, do not count. */
static struct cst_set find_alike(const struct cst_model *model, uint32_t rank)
{
    struct cst_set alike = cst_set_range(0, CST_SET_MAX);

    for (uint32_t i = 0; i < model->n_operators; i++) {
        const struct cst_layout_operator *op = &model->operators[i];
        bool sparse =
            op->n_tensors > 0 && cst_pattern(model->tensors[op->tensors[0]].pattern)->sparse;

        if (!sparse && op->group != 0) {
            const struct cst_set ranks = cst_model_runners(model, op);

            alike = cst_set_has(&ranks, rank) ? cst_set_intersect(alike, ranks)
                                              : cst_set_minus(alike, ranks);
        }
    }
    return alike;
}

static int open_rank(struct cst_core *core, const struct cst_core_config *config, uint32_t rank,
                     struct cst_err *err)
{
    struct cst_rank *r = &core->ranks[rank];
    const struct cst_core_pool *pool = &config->pools[rank];

    r->sync = CST_NO_REQUEST;
    r->step = CST_NO_REQUEST;
    r->next = CST_NO_REQUEST;
    r->alike = find_alike(core->model, rank);
    cst_drift_reset(r);
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
    if (cst_trace_init(&r->trace, core->layout, core->model, rank,
                       core->model->n_stages > 0 ? 1 : core->micro_batches) != CST_OK ||
        cst_pool_init(&r->pool, pool, core->layout, &r->trace) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the pool of rank %" PRIu32, rank);
    }
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

        if (other->tier == pool->tier && !other->worker_copies) {
            return false;
        }
    }
    return cst_tier_is_apart(pool->tier) && !pool->worker_copies;
}

/* Number of GPUs like that of @rank, itself included, that can exchange weights with it. */
static uint32_t count_group(const struct cst_core *core, uint32_t rank)
{
    const struct cst_pool *pool = &core->ranks[rank].pool;
    uint32_t n = 1;

    for (uint32_t other = 0; other < core->world; other++) {
        n += has_new_gpu(core, other) && cst_pool_can_exchange(pool, &core->ranks[other].pool);
    }
    return n;
}

static uint32_t count_gpus(const struct cst_core *core)
{
    uint32_t n = 0;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        uint32_t group = has_new_gpu(core, rank) ? count_group(core, rank) : 0;

        n = group > n ? group : n;
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
        if (core->ranks[other].pool.tier == r->pool.tier &&
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
    core->ranks[rank].pool.tier = pool->tier;
    core->ranks[rank].pool.worker_copies = pool->worker_copies;
    core->ranks[rank].pool.unreachable = pool->unreachable;
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

/* A plan can replay a few ranks that stand for all ranks of a layout. */
static int open_groups(struct cst_core *core)
{
    core->groups = calloc(core->model->n_groups, sizeof *core->groups);
    for (uint32_t g = 0; core->groups != NULL && g < core->model->n_groups; g++) {
        core->groups[g] = cst_set_intersect(core->layout->groups[g], cst_set_range(0, core->world));
    }
    return core->groups != NULL ? CST_OK : CST_ENOMEM;
}

static void open_chunks(struct cst_core *core, bool arenas_are_new)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_layout_chunk *at = &core->layout->chunks[c];

        core->chunks[c].ranks = &core->groups[at->ranks - core->layout->groups];
        core->chunks[c].has_states = cst_layout_has_states(at);
        core->chunks[c].away = at->away;
        core->chunks[c].moments_are_new = arenas_are_new;
        core->chunks[c].gradient.spilled = CST_NONE;
        core->chunks[c].update.reservation = CST_NONE;
        core->chunks[c].tier = at->tier;
        core->chunks[c].kept = CST_NONE;
        core->chunks[c].evicted.rank = CST_NONE;
        core->n_trained += core->chunks[c].has_states;
    }
}

/* A step goes on without a rank that is gone, but an array that one rank puts for another one does
 * not come then. */
int cst_core_check_stages(const struct cst_model *model, uint32_t micro_batches,
                          enum cst_overlap overlap, struct cst_err *err)
{
    return cst_step_schedule_of(model)->check(model, micro_batches, overlap, err);
}

/* Check that a job can be as @config says. */
static int check_config(const struct cst_core_config *config, struct cst_err *err)
{
    if (config->world == 0 || config->world > CST_CORE_MAX_WORLD) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu32 " ranks: 1..%d are allowed", config->world,
                           CST_CORE_MAX_WORLD);
    }
    if (config->layout->grad_bytes <
        cst_layout_grad_elem_bytes(config->world, config->micro_batches)) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " ranks with %" PRIu32
                           " micro-batches a step need grad rows of fp32",
                           config->world, config->micro_batches);
    }
    if (config->policy.overlap != CST_OVERLAP_COMMIT && !config->layout->states.two_weights) {
        return cst_err_set(err, CST_EINVAL,
                           "early and delayed updates need a second weight row in the layout");
    }
    if (cst_core_check_stages(config->model, config->micro_batches, config->policy.overlap, err) !=
        CST_OK) {
        return CST_EINVAL;
    }
    return cst_weight_row_admit(config, err);
}

/* Check the configuration of a job with other machines. */
static int check_machines(const struct cst_core *core, const struct cst_core_config *config,
                          struct cst_err *err)
{
    const struct cst_core_machines *m = config->machines;
    const struct cst_layout_machines *layout = &core->layout->machines;

    if (m->n < 2 || m->n > CST_MACHINES_MAX || m->self >= m->n || m->copies == 0 ||
        m->copies > m->n) {
        return cst_err_set(err, CST_EINVAL,
                           "machine %" PRIu32 " of %" PRIu32 " with %" PRIu32
                           " copies of states: a job has 2 to %d machines",
                           m->self, m->n, m->copies, CST_MACHINES_MAX);
    }
    if (layout->n != m->n || layout->self != m->self || layout->copies != m->copies ||
        core->table == NULL) {
        return cst_err_set(err, CST_EINVAL,
                           "the layout was made for machine %" PRIu32 " of %" PRIu32
                           ", or there is no job table",
                           layout->self, layout->n);
    }
    if (core->layout->states.durable) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "a job on several machines cannot be durable: leave durable out");
    }
    return CST_OK;
}

static int open_machines(struct cst_core *core, const struct cst_core_config *config,
                         struct cst_err *err)
{
    int status = config->machines != NULL ? check_machines(core, config, err) : CST_OK;

    if (status == CST_OK && config->machines != NULL) {
        core->machines = malloc(sizeof *core->machines);
        if (core->machines == NULL) {
            return cst_err_set(err, CST_ENOMEM, "no memory for a job");
        }
        *core->machines = *config->machines;
    }
    if (status == CST_OK) {
        status = cst_partials_open(core, config, err);
    }
    if (status == CST_OK &&
        (cst_replicas_open(core) != CST_OK || cst_agreement_open(core) != CST_OK ||
         cst_machine_waits_open(core) != CST_OK)) {
        status = cst_err_set(err, CST_ENOMEM, "no memory for what other machines tell");
    }
    core->adds_singly = core->grad_fp32 || core->partials.n_here > 1;
    return status;
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
    core->schedule = cst_step_schedule_of(config->model);
    core->arena_segments = config->arena_segments;
    core->table_segment = config->table_segment;
    core->table = config->table;
    core->world = config->world;
    core->n_chunks = config->layout->n_chunks;
    core->peer_timeout_ns = config->peer_timeout_ns;
    core->policy = config->policy;
    core->micro_batches = config->micro_batches == 0 ? 1 : config->micro_batches;
    core->grad_fp32 = config->layout->grad_bytes == 4;
    core->adds_singly = core->grad_fp32;
    core->two_weights = config->layout->states.two_weights;
    core->step = config->step;
    core->commit.adam_step = config->step;
    cst_versions_open(core);
    core->out.last_ticket = config->first_ticket == 0 ? 0 : config->first_ticket - 1;
    cst_requests_init(&core->requests);
    cst_flights_init(&core->flights);
    core->ranks = calloc(core->world, sizeof *core->ranks);
    core->chunks = calloc(core->n_chunks, sizeof *core->chunks);
    core->commit.order = calloc(core->n_chunks, sizeof *core->commit.order);
    core->n_nodes = count_nodes(core->layout);
    if (core->ranks == NULL || core->chunks == NULL || core->commit.order == NULL ||
        open_groups(core) != CST_OK || cst_collection_open(core) != CST_OK) {
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
    status = status == CST_OK ? cst_landing_check(core, err) : status;
    status = status == CST_OK ? cst_idle_open(core, err) : status;
    status = status == CST_OK ? open_machines(core, config, err) : status;
    if (status == CST_OK && cst_seal_open(core) != CST_OK) {
        status = cst_err_set(err, CST_ENOMEM, "no memory for checksums of %" PRIu32 " chunks",
                             core->n_chunks);
    }
    if (status == CST_OK && cst_update_open(core) != CST_OK) {
        status = cst_err_set(err, CST_ENOMEM, "no memory for the use of scratches");
    }
    if (status == CST_OK) {
        open_chunks(core, config->arenas_are_new);
        status = core->schedule->open(core, err);
    }
    if (status != CST_OK) {
        cst_core_close(core);
        return status;
    }
    *out = core;
    return CST_OK;
}

void cst_core_limit_trace(struct cst_core *core, uint32_t rank, uint32_t n)
{
    core->ranks[rank].trace.max_record = n < CST_TRACE_MAX_RECORD ? n : CST_TRACE_MAX_RECORD;
}

bool cst_core_trace_wants(const struct cst_core *core, uint32_t rank)
{
    enum { SOON = 8 }; /* More entries than one event adds. */
    const struct cst_trace *trace = &core->ranks[rank].trace;

    return !trace->broken && trace->max_record < CST_TRACE_MAX_RECORD &&
           trace->n_record + SOON > trace->max_record;
}

uint64_t cst_core_heap_bytes(const struct cst_layout *layout, const struct cst_model *model,
                             uint32_t world, uint64_t n_blocks)
{
    enum {
        CHUNK_OF_RANK = 40, /* Maps of a pool and of the declared phase (block.c, phase.c). */
        VISIT = 9,          /* An entry of a phase. */
        VISITS = 4,         /* Of a tensor, in forward and backward passes. */
        BLOCK = 64,         /* The orders of eviction (victim.c). */
    };
    uint64_t of_rank = sizeof(struct cst_rank) + (uint64_t)layout->n_chunks * CHUNK_OF_RANK +
                       (uint64_t)model->n_uses * VISITS * VISIT;
    uint64_t sums = layout->states.durable
                        ? (uint64_t)layout->n_chunks * CST_DURABLE_ROWS * sizeof(uint64_t)
                        : 0;

    uint64_t machines = layout->machines.n > 1 || layout->partials.n_here > 1 ? 1 : 0;
    uint64_t rank_blocks = (uint64_t)layout->partials.n_here + layout->partials.n_come;

    machines *= (uint64_t)layout->n_chunks *
                (sizeof(struct cst_chunk_partials) + sizeof(struct cst_partials_sum) +
                 rank_blocks * sizeof(struct cst_partials_place) + sizeof(struct cst_replica));
    return machines + sums + sizeof(struct cst_core) +
           layout->n_chunks * (sizeof(struct cst_chunk) + sizeof(uint32_t)) + world * of_rank +
           n_blocks * (sizeof(struct cst_block) + BLOCK);
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
    core->schedule->close(core);
    cst_requests_close(&core->requests);
    cst_flights_close(&core->flights);
    free(core->ranks);
    free(core->chunks);
    free(core->groups);
    free(core->commit.order);
    cst_collection_close(core);
    cst_landing_close(core);
    cst_update_close(core);
    cst_idle_close(core);
    cst_seal_close(core);
    cst_partials_close(core);
    cst_replicas_close(core);
    cst_agreement_close(core);
    cst_machine_waits_close(core);
    free(core->machines);
    free(core);
}

/* -- job table -------------------------------------------------------------------------------- */

static void write_chunk(const struct cst_core_config *config, uint32_t c,
                        struct cst_table_chunk *to)
{
    const struct cst_layout_chunk *from = &config->layout->chunks[c];

    to->n_elems = from->n_elems;
    to->dtype = from->dtype;
    for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
        const struct cst_layout_row *row = &from->rows[r];

        if (row->segment != CST_LAYOUT_NO_ROW) {
            to->rows[r].segment = config->arena_segments[row->segment];
            to->rows[r].offset = row->offset;
        }
    }
    /* Engines of nodes do not use the weights in a file. */
    if (from->other_weight.segment != CST_LAYOUT_NO_ROW && !config->layout->states.durable) {
        to->other_weight.segment = config->arena_segments[from->other_weight.segment];
        to->other_weight.offset = from->other_weight.offset;
    }
}

/* Write what an update of the chunk by Muon needs. */
static void write_scratch(const struct cst_core_config *config, uint32_t c,
                          struct cst_table_chunk *to)
{
    const struct cst_layout *layout = config->layout;
    uint32_t segment = layout->scratches[layout->chunks[c].node].segment;

    to->scratch.segment = config->arena_segments[segment];
    to->scratch_bytes = layout->segments[segment].bytes;
}

static struct cst_table_span span_of(const struct cst_layout_tensor *t, bool muon)
{
    struct cst_table_span span = {.start = t->offset,
                                  .n_elems = t->n_elems,
                                  .first_tile = t->first_tile,
                                  .lr_scale = t->lr_scale,
                                  .decay_scale = t->decay_scale,
                                  .param_group = t->param_group};

    if (muon) {
        (void)cst_muon_shape(t->shape, t->n_dims, &span.rows, &span.columns);
    }
    return span;
}

void cst_core_write_table(const struct cst_core_config *config, struct cst_table_header *table)
{
    const struct cst_layout *layout = config->layout;
    struct cst_table_chunk *chunks = cst_table_chunks(table);
    struct cst_table_span *spans = cst_table_spans(table);
    uint32_t n_spans = 0;

    table->grad_bytes = layout->grad_bytes;
    table->optimizer = (uint32_t)layout->states.optimizer;
    table->masters = (uint32_t)layout->states.masters;
    table->moments = (uint32_t)layout->states.moments;
    table->rounding = (uint32_t)config->rounding;
    table->seed = config->seed;
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *from = &layout->chunks[c];

        chunks[c] = (struct cst_table_chunk){.first_span = n_spans};
        write_chunk(config, c, &chunks[c]);
        if (!cst_layout_has_states(from)) {
            continue;
        }
        chunks[c].n_spans = from->n_tensors;
        if (from->muon) {
            write_scratch(config, c, &chunks[c]);
        }
        for (uint32_t i = from->first_tensor; i < from->first_tensor + from->n_tensors; i++) {
            const struct cst_layout_tensor *t = &config->model->tensors[layout->order[i]];

            spans[n_spans++] = span_of(t, from->muon);
        }
    }
    for (uint32_t i = 0; layout->states.skips_unused && i < 2 * n_spans; i++) {
        *cst_table_steps(table, i / 2, i % 2) = (struct cst_table_steps){0};
    }
}

void cst_core_forget_updates(struct cst_table_header *table, uint64_t adam_step)
{
    struct cst_table_chunk *chunks = cst_table_chunks(table);
    const struct cst_table_span *spans = cst_table_spans(table);
    struct cst_table_tile *tiles = cst_table_tiles(table);

    for (uint32_t c = 0; c < table->n_chunks; c++) {
        if (chunks[c].update_mark <= adam_step) {
            continue;
        }
        chunks[c].update_mark = CST_MARK_NONE;
        for (uint32_t s = 0; s < chunks[c].n_spans; s++) {
            const struct cst_table_span *span = &spans[chunks[c].first_span + s];

            for (uint64_t i = 0; i < cst_table_n_tiles(span->n_elems); i++) {
                tiles[span->first_tile + i].update_mark = CST_MARK_NONE;
            }
        }
    }
}

bool cst_core_is_plain(const struct cst_core *core)
{
    bool plain = true;

    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_weight_row *row = &core->chunks[c].weight;

        plain = plain && !row->second && row->rows == CST_ROWS_CURRENT &&
                row->holds == CST_HOLDS_WEIGHTS && !row->broken;
    }
    return plain;
}
