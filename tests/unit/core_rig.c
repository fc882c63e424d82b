/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/core_rig.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static uint32_t arena_segments[RIG_POOL_SEGMENT - RIG_ARENA_SEGMENT];

/* Number of the group of @ranks. Declares the group if it is new. */
static uint32_t group_of(struct cst_model *model, uint64_t ranks)
{
    for (uint32_t g = 1; g < model->n_groups; g++) {
        if (model->groups[g - 1].words[0] == ranks) {
            return g;
        }
    }
    ck_assert_int_eq(cst_model_group(model, bits(ranks), NULL), CST_OK);
    return model->n_groups - 1;
}

static void declare_tensor(struct rig *rig, const struct rig_job *job, uint32_t i)
{
    int64_t shape = RIG_CHUNK_ELEMS;
    char name[32];
    struct cst_tensor_words words = {
        .name = name, .shape = &shape, .n_dims = 1, .lr_scale = 1.0f, .decay_scale = 1.0f};

    (void)snprintf(name, sizeof name, "t%u", i);
    if (job->ranks != NULL && job->ranks[i] != 0) {
        words.group = group_of(&rig->model, job->ranks[i]);
    }
    words.pattern = job->patterns != NULL ? job->patterns[i] : CST_PATTERN_SHARD;
    ck_assert_int_eq(cst_model_tensor(&rig->model, &words, NULL), CST_OK);
    words.group = 0;
    if (words.pattern == CST_PATTERN_FROZEN) {
        ck_assert_int_eq(cst_model_tensor(&rig->base_model, &words, NULL), CST_OK);
    }
}

static void declare(struct rig *rig, const struct rig_job *job)
{
    char name[32];

    cst_model_init(&rig->model);
    cst_model_init(&rig->base_model);
    for (uint32_t i = 0; i < job->n_chunks; i++) {
        const uint32_t tensors[] = {i, 0};
        bool both = job->tied && i > 0 && i + 1 == job->n_chunks;

        declare_tensor(rig, job, i);
        if (job->n_stages > 0 && i * job->n_stages / job->n_chunks == rig->model.n_stages) {
            ck_assert_int_eq(cst_model_stage(&rig->model, NULL), CST_OK);
        }
        (void)snprintf(name, sizeof name, "op%u", i);
        ck_assert_int_eq(cst_model_operator(&rig->model, name, tensors, both ? 2 : 1, NULL, NULL),
                         CST_OK);
    }
}

void rig_open(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
              uint32_t prefetch_depth)
{
    static const uint32_t host[CST_CORE_MAX_WORLD];

    rig_open_on(rig, n_chunks, world, n_blocks, prefetch_depth, host);
}

static void lay_out(struct rig *rig, const struct rig_job *job)
{
    struct cst_layout_config layout = {.chunk_elems = RIG_CHUNK_ELEMS,
                                       .n_nodes = job->n_nodes == 0 ? 1 : job->n_nodes,
                                       .world = job->world,
                                       .states = {.optimizer = job->optimizer,
                                                  .moments = job->moments,
                                                  .grad_over_weight = job->grad_over,
                                                  .two_weights = job->overlap != CST_OVERLAP_COMMIT,
                                                  .skips_unused = job->skips_unused},
                                       .grad_bytes =
                                           job->micro_batches > 1 || job->grad_fp32 ? 4 : 2,
                                       .landings = job->landings};
    struct cst_err err;

    if (job->device != NULL) {
        layout.devices[layout.n_devices++] = *job->device;
    }
    if (job->with_base) {
        ck_assert_int_eq(cst_layout_build(&rig->base_layout, &rig->base_model, &layout, &err),
                         CST_OK);
        layout.base_model = &rig->base_model;
        layout.base = &rig->base_layout;
    }
    ck_assert_msg(cst_layout_build(&rig->layout, &rig->model, &layout, &err) == CST_OK, "%s",
                  err.text);
    ck_assert_uint_eq(rig->layout.n_chunks, job->n_chunks);
    for (uint32_t i = 0; i < job->n_chunks; i++) {
        ck_assert_uint_eq(rig->model.tensors[i].chunk, i);
    }
}

static void open_pools(struct rig *rig, const struct rig_job *job, struct cst_core_policy policy,
                       const uint32_t *engines, bool worker_copies)
{
    uint32_t n_blocks = job->n_blocks;
    uint32_t world = job->world;
    struct cst_core_config config;
    struct cst_err err;

    memset(rig, 0, sizeof *rig);
    declare(rig, job);
    lay_out(rig, job);
    ck_assert_uint_le(rig->layout.n_segments, RIG_POOL_SEGMENT - RIG_ARENA_SEGMENT);
    for (uint32_t i = 0; i < RIG_POOL_SEGMENT - RIG_ARENA_SEGMENT; i++) {
        arena_segments[i] = RIG_ARENA_SEGMENT + i;
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        rig->pool_segments[rank] = RIG_POOL_SEGMENT + rank;
        rig->pools[rank] = (struct cst_core_pool){
            .parts[0] = {.n_blocks = n_blocks, .blocks_per_slab = n_blocks},
            .segments = &rig->pool_segments[rank],
            .tier = engines[rank],
            .worker_copies = worker_copies,
            .unreachable = bits(job->unreachable != NULL ? job->unreachable[rank] : 0)};
    }
    config = (struct cst_core_config){.model = &rig->model,
                                      .layout = &rig->layout,
                                      .world = world,
                                      .arena_segments = arena_segments,
                                      .table_segment = RIG_TABLE_SEGMENT,
                                      .table = job->table,
                                      .pools = rig->pools,
                                      .first_ticket = job->first_ticket,
                                      .peer_timeout_ns = 1000000000,
                                      .micro_batches = job->micro_batches,
                                      .reservations = job->reservations,
                                      .n_reservations = job->n_reservations,
                                      .interleave = job->interleave,
                                      .arenas_are_new = job->arenas_are_new,
                                      .policy = policy};
    cst_actions_init(&rig->actions);
    rig->now = 1;
    rig->norm = 1.0;
    ck_assert_msg(cst_core_open(&rig->core, &config, &err) == CST_OK, "%s", err.text);
}

static struct cst_core_policy depth_policy(uint32_t depth)
{
    return (struct cst_core_policy){.prefetch_depth = depth == 0 ? CST_CORE_NO_PREFETCH : depth};
}

void rig_open_on(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
                 uint32_t prefetch_depth, const uint32_t *engines)
{
    open_pools(rig, &(struct rig_job){.n_chunks = n_chunks, .world = world, .n_blocks = n_blocks},
               depth_policy(prefetch_depth), engines, false);
}

void rig_open_worker_copies(struct rig *rig, uint32_t n_chunks, uint32_t world, uint32_t n_blocks,
                            uint32_t prefetch_depth)
{
    uint32_t engines[CST_CORE_MAX_WORLD];

    for (uint32_t rank = 0; rank < world; rank++) {
        engines[rank] = 1;
    }
    open_pools(rig, &(struct rig_job){.n_chunks = n_chunks, .world = world, .n_blocks = n_blocks},
               depth_policy(prefetch_depth), engines, true);
}

void rig_open_job(struct rig *rig, const struct rig_job *job)
{
    static const uint32_t host[CST_CORE_MAX_WORLD];
    struct cst_core_policy policy = depth_policy(job->prefetch_depth);

    policy.gather_bytes = job->gather_bytes;
    policy.overlap = job->overlap;
    policy.delay_from = job->delay_from;
    open_pools(rig, job, policy, job->engines != NULL ? job->engines : host, job->worker_copies);
}

void rig_close(struct rig *rig)
{
    cst_core_close(rig->core);
    cst_actions_close(&rig->actions);
    cst_layout_close(&rig->layout);
    cst_layout_close(&rig->base_layout);
    cst_model_close(&rig->model);
    cst_model_close(&rig->base_model);
}

static void keep_actions(struct rig *rig)
{
    for (size_t i = 0; i < rig->actions.n; i++) {
        const struct cst_action *a = &rig->actions.v[i];

        if (a->kind == CST_ACT_COMMAND) {
            ck_assert_uint_lt(rig->n_commands, RIG_MAX);
            rig->commands[rig->n_commands++] = a->command;
        } else if (a->kind == CST_ACT_REPLY) {
            ck_assert_uint_lt(rig->n_replies, RIG_MAX);
            ck_assert_msg(rig_reply(rig, a->reply.tag) == NULL, "second reply to tag %lu",
                          (unsigned long)a->reply.tag);
            rig->replies[rig->n_replies++] = a->reply;
        } else if (a->kind == CST_ACT_RECALL) {
            ck_assert_uint_lt(rig->n_recalls, RIG_MAX);
            rig->recalls[rig->n_recalls++] = a->recall;
        } else if (a->kind == CST_ACT_LOG) {
            rig->n_logs++;
        }
    }
}

uint64_t rig_event(struct rig *rig, struct cst_event event)
{
    const char *broken;

    if (event.kind != CST_EV_DONE && event.kind != CST_EV_TICK && event.tag == 0) {
        event.tag = ++rig->tag;
    }
    event.now = rig->now;
    cst_core_step(rig->core, &event, &rig->actions);
    keep_actions(rig);
    broken = cst_core_check(rig->core);
    ck_assert_msg(broken == NULL, "invariant broken: %s", broken);
    return event.tag;
}

uint64_t rig_rank_event(struct rig *rig, enum cst_event_kind kind, uint32_t rank)
{
    return rig_event(rig, (struct cst_event){.kind = kind, .rank = rank, .attempt = rig->attempt});
}

static uint64_t item(struct rig *rig, enum cst_event_kind kind, uint32_t rank, uint32_t chunk,
                     uint64_t generation, bool ahead)
{
    return rig_event(rig, (struct cst_event){.kind = kind,
                                             .rank = rank,
                                             .attempt = rig->attempt,
                                             .chunk = chunk,
                                             .generation = generation,
                                             .ahead = ahead});
}

uint64_t rig_fetch(struct rig *rig, uint32_t rank, uint32_t chunk)
{
    return item(rig, CST_EV_FETCH_WEIGHT, rank, chunk, 0, false);
}

uint64_t rig_fetch_ahead(struct rig *rig, uint32_t rank, uint32_t chunk)
{
    return item(rig, CST_EV_FETCH_WEIGHT, rank, chunk, 0, true);
}

uint64_t rig_fetch_grad(struct rig *rig, uint32_t rank, uint32_t chunk)
{
    return item(rig, CST_EV_FETCH_GRAD, rank, chunk, 0, false);
}

uint64_t rig_release(struct rig *rig, uint32_t rank, uint32_t chunk, uint64_t generation)
{
    return item(rig, CST_EV_RELEASE, rank, chunk, generation, false);
}

uint64_t rig_hand_in(struct rig *rig, uint32_t rank, uint32_t chunk, uint64_t generation)
{
    return item(rig, CST_EV_HAND_IN, rank, chunk, generation, false);
}

uint64_t rig_io(struct rig *rig, enum cst_event_kind kind, uint32_t tensor, enum cst_row row,
                uint64_t first, uint64_t n)
{
    return rig_event(rig,
                     (struct cst_event){.kind = kind,
                                        .tensor = tensor,
                                        .row = row,
                                        .first = first,
                                        .n_elems = n,
                                        .place = {RIG_STAGING_SEGMENT, 0, RIG_STAGING_OFFSET}});
}

uint64_t rig_step(struct rig *rig, uint32_t rank)
{
    return rig_event(
        rig, (struct cst_event){
                 .kind = CST_EV_STEP,
                 .rank = rank,
                 .attempt = rig->attempt,
                 .loss = 1.0 + rank,
                 .hyper = {
                     .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f}});
}

const struct cst_reply *rig_reply(const struct rig *rig, uint64_t tag)
{
    for (unsigned i = 0; i < rig->n_replies; i++) {
        if (rig->replies[i].tag == tag) {
            return &rig->replies[i];
        }
    }
    return NULL;
}

const struct cst_reply *rig_answer(const struct rig *rig, uint64_t tag)
{
    const struct cst_reply *reply = rig_reply(rig, tag);

    if (reply == NULL) {
        ck_abort_msg("no reply to tag %lu", (unsigned long)tag);
    }
    return reply;
}

int rig_status(const struct rig *rig, uint64_t tag)
{
    return rig_answer(rig, tag)->status;
}

bool rig_waits(const struct rig *rig, uint64_t tag)
{
    return rig_reply(rig, tag) == NULL;
}

const struct cst_command *rig_command(const struct rig *rig, enum cst_command_kind kind, unsigned n)
{
    for (unsigned i = 0; i < rig->n_commands; i++) {
        if (rig->commands[i].kind == kind && n-- == 0) {
            return &rig->commands[i];
        }
    }
    return NULL;
}

unsigned rig_count(const struct rig *rig, enum cst_command_kind kind)
{
    unsigned n = 0;

    for (unsigned i = 0; i < rig->n_commands; i++) {
        n += rig->commands[i].kind == kind;
    }
    return n;
}

struct cst_command rig_only(const struct rig *rig, enum cst_command_kind kind)
{
    const struct cst_command *command = rig_command(rig, kind, 0);

    if (command == NULL || rig_count(rig, kind) != 1) {
        ck_abort_msg("%u commands of kind %d, not one", rig_count(rig, kind), (int)kind);
    }
    return *command;
}

void rig_done(struct rig *rig, uint64_t ticket, int status, const char *text)
{
    unsigned i = 0;

    while (i < rig->n_commands && rig->commands[i].ticket != ticket) {
        i++;
    }
    ck_assert_msg(i < rig->n_commands, "no command with ticket %lu", (unsigned long)ticket);
    memmove(&rig->commands[i], &rig->commands[i + 1],
            (rig->n_commands - i - 1) * sizeof rig->commands[0]);
    rig->n_commands--;
    (void)rig_event(rig, (struct cst_event){.kind = CST_EV_DONE,
                                            .ticket = ticket,
                                            .status = status,
                                            .text = text,
                                            .value = rig->norm});
}

void rig_drain(struct rig *rig)
{
    while (rig->n_commands > 0) {
        rig_done(rig, rig->commands[0].ticket, CST_OK, NULL);
    }
}

struct cst_core_stats rig_stats(const struct rig *rig)
{
    struct cst_core_stats stats;

    cst_core_stats(rig->core, &stats);
    return stats;
}

struct cst_rank_stats rig_rank_stats(const struct rig *rig, uint32_t rank)
{
    struct cst_rank_stats stats;

    cst_core_rank_stats(rig->core, rank, &stats);
    return stats;
}

struct cst_books rig_books(const struct rig *rig, uint32_t rank)
{
    return rig_rank_stats(rig, rank).books;
}

void rig_start(struct rig *rig, uint32_t world)
{
    uint64_t tag = 0;

    for (uint32_t rank = 0; rank < world; rank++) {
        (void)rig_rank_event(rig, CST_EV_ATTACH, rank);
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        tag = rig_rank_event(rig, CST_EV_SYNC, rank);
    }
    ck_assert_int_eq(rig_status(rig, tag), CST_OK);
    rig->attempt = rig_answer(rig, tag)->attempt;
}

uint64_t rig_get(struct rig *rig, uint32_t rank, uint32_t chunk)
{
    uint64_t tag = rig_fetch(rig, rank, chunk);

    if (rig_waits(rig, tag)) {
        rig_drain(rig);
    }
    ck_assert_int_eq(rig_status(rig, tag), CST_OK);
    return rig_answer(rig, tag)->generation;
}

uint64_t rig_get_grad(struct rig *rig, uint32_t rank, uint32_t chunk)
{
    uint64_t tag = rig_fetch_grad(rig, rank, chunk);

    if (rig_waits(rig, tag)) {
        rig_drain(rig);
    }
    ck_assert_int_eq(rig_status(rig, tag), CST_OK);
    return rig_answer(rig, tag)->generation;
}

void rig_whole_step(struct rig *rig, uint32_t n_chunks, uint32_t world)
{
    uint64_t tag = 0;

    for (uint32_t c = 0; c < n_chunks; c++) {
        for (uint32_t rank = 0; rank < world; rank++) {
            (void)rig_release(rig, rank, c, rig_get(rig, rank, c));
        }
    }
    for (uint32_t c = n_chunks; c-- > 0;) {
        for (uint32_t rank = 0; rank < world; rank++) {
            uint64_t weight = rig_get(rig, rank, c);
            uint64_t grad = rig_get_grad(rig, rank, c);

            (void)rig_release(rig, rank, c, weight);
            ck_assert_int_eq(rig_status(rig, rig_hand_in(rig, rank, c, grad)), CST_OK);
        }
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        tag = rig_step(rig, rank);
    }
    rig_drain(rig);
    ck_assert_int_eq(rig_status(rig, tag), CST_OK);
    rig->n_replies = 0;
}
