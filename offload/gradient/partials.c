/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/gradient/partials.h"

#include "offload/books/membership.h"
#include "offload/core/core_state.h"
#include "offload/gradient/collection.h"
#include "offload/gradient/tile_squares.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* -- opening ---------------------------------------------------------------------------------- */

/* A sum of several contributions is fp32, so that it is rounded once. */
static int check(const struct cst_core *core, const struct cst_core_config *config,
                 struct cst_err *err)
{
    const struct cst_partials *p = &core->partials;
    const struct cst_layout *layout = core->layout;
    uint32_t rows = layout->partials.n_here > 1 ? layout->partials.n_here : 1;

    if (p->n_here != rows || p->n - p->n_here != layout->partials.n_come) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " of %" PRIu32 " rank blocks are on this machine, and the "
                           "layout has rows for %" PRIu32 " and landings for %" PRIu32,
                           p->n_here, p->n, rows, layout->partials.n_come);
    }
    if (!core->grad_fp32 && (p->block_ranks > 1 || core->micro_batches > 1)) {
        return cst_err_set(err, CST_EINVAL,
                           "rank blocks of %" PRIu32 " ranks with %" PRIu32
                           " micro-batches need grad rows of fp32",
                           p->block_ranks, core->micro_batches);
    }
    if (layout->states.grad_over_weight || core->policy.overlap != CST_OVERLAP_COMMIT ||
        config->n_reservations > 0) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "a job with ranks on several nodes, or with block_ranks, cannot have %s",
            layout->states.grad_over_weight ? "gradients in the place of weights: leave "
                                              "grad_over_weight out"
            : config->n_reservations > 0    ? "updates on accelerators: set "
                                              "device_update_bytes to 0"
                                            : "early or delayed updates: set overlap to commit");
    }
    return CST_OK;
}

static int allocate(struct cst_core *core)
{
    struct cst_partials *p = &core->partials;
    uint32_t n_sets = core->n_nodes * CST_LAYOUT_PARTIAL_SETS, slots = 0;
    uint64_t tiles = 1;

    p->chunks = calloc(core->n_chunks, sizeof *p->chunks);
    p->sets = calloc(n_sets, sizeof *p->sets);
    p->first_queued = malloc(core->n_nodes * sizeof *p->first_queued);
    p->last_queued = malloc(core->n_nodes * sizeof *p->last_queued);
    if (p->chunks == NULL || p->sets == NULL || p->first_queued == NULL || p->last_queued == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &core->layout->chunks[c];
        bool here = cst_layout_has_states(chunk) && !chunk->away;
        uint64_t n = cst_tile_squares_count(core, c);

        tiles = n > tiles ? n : tiles;
        p->chunks[c].slot = here ? slots++ : CST_NONE;
    }
    for (uint32_t i = 0; i < n_sets; i++) {
        p->sets[i].chunk = CST_NONE;
    }
    for (uint32_t node = 0; node < core->n_nodes; node++) {
        p->first_queued[node] = p->last_queued[node] = CST_NONE;
    }
    p->sums = calloc(slots + 1u, sizeof *p->sums);
    p->places = calloc((size_t)slots * p->n + 1, sizeof *p->places);
    p->squares = calloc(tiles, sizeof *p->squares);
    return p->sums != NULL && p->places != NULL && p->squares != NULL ? CST_OK : CST_ENOMEM;
}

/* The bits below bit @n. */
static uint64_t bits_below(uint32_t n)
{
    return n == CST_RANK_BLOCKS_MAX ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

int cst_partials_open(struct cst_core *core, const struct cst_core_config *config,
                      struct cst_err *err)
{
    struct cst_partials *p = &core->partials;
    const struct cst_core_machines *machines = core->machines;
    uint32_t ranks = config->block_ranks == 0 ? core->world : config->block_ranks;
    uint32_t here = (core->world + ranks - 1) / ranks;
    /* On one machine the order of single contributions is that of their ranks, in one sum. */
    bool plain = here == 1 || (ranks == 1 && core->micro_batches == 1);

    if (machines == NULL && plain) {
        return CST_OK;
    }
    p->on = true;
    p->n_here = here;
    p->n = machines != NULL ? machines->n_rank_blocks : here;
    p->here = machines != NULL ? machines->rank_blocks : bits_below(here);
    p->block_ranks = ranks;
    if (here * ranks != core->world || p->n > CST_RANK_BLOCKS_MAX ||
        (uint32_t)__builtin_popcountll(p->here) != here || (p->here & ~bits_below(p->n)) != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " ranks in rank blocks of %" PRIu32 ", which are %#" PRIx64
                           " of %" PRIu32 ": a job has up to %d, each with equally many ranks",
                           core->world, ranks, p->here, p->n, CST_RANK_BLOCKS_MAX);
    }
    if (check(core, config, err) != CST_OK) {
        return err != NULL ? err->status : CST_EINVAL;
    }
    return allocate(core) == CST_OK
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "no memory for sums of %" PRIu32 " rank blocks",
                             p->n);
}

void cst_partials_close(struct cst_core *core)
{
    struct cst_partials *p = &core->partials;

    free(p->chunks);
    free(p->sums);
    free(p->places);
    free(p->sets);
    free(p->first_queued);
    free(p->last_queued);
    free(p->squares);
}

/* -- contributions here ----------------------------------------------------------------------- */

static uint32_t block_of(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    return core->partials.n_here > 1 ? core->schedule->block_of(core, c, rank) : 0;
}

bool cst_partials_same_block(const struct cst_core *core, uint32_t c, uint32_t a, uint32_t b)
{
    return block_of(core, c, a) == block_of(core, c, b);
}

/* The row of rank block @b here. */
static struct cst_place row_place(const struct cst_core *core, uint32_t c, uint32_t b)
{
    const struct cst_layout_row *row;

    if (b == 0) {
        return cst_core_row_place(core, c, CST_ROW_GRAD, 0);
    }
    row = &core->layout->partial_rows[(size_t)c * (core->partials.n_here - 1) + b - 1];
    return (struct cst_place){.segment = core->arena_segments[row->segment], .offset = row->offset};
}

void cst_partials_add(struct cst_core *core, uint32_t c, uint32_t rank, struct cst_command *reduce)
{
    uint32_t b = block_of(core, c, rank);
    uint64_t *filled = core->partials.on ? &core->partials.chunks[c].filled : NULL;

    if (filled == NULL) {
        return;
    }
    reduce->accumulate = (*filled >> b & 1) != 0;
    *filled |= UINT64_C(1) << b;
    if (b > 0) {
        reduce->dst[reduce->n_dst++] = row_place(core, c, b);
    }
}

/* -- what has come ---------------------------------------------------------------------------- */

/* Note that rank block @block of the job is complete, as @what says. */
static void take(struct cst_core *core, uint32_t machine, const struct cst_machine_message *what)
{
    struct cst_partials *p = &core->partials;
    uint32_t slot = p->chunks[what->chunk].slot;
    struct cst_partials_sum *sum = &p->sums[slot];
    const struct cst_when when = cst_membership_when(what);
    int age = cst_when_compare(&when, &sum->when);

    if (age < 0) {
        return;
    }
    if (age > 0) {
        *sum = (struct cst_partials_sum){.when = when};
    }
    sum->come |= UINT64_C(1) << what->block;
    sum->last = machine;
    if (!what->empty) {
        sum->filled |= UINT64_C(1) << what->block;
        p->places[(size_t)slot * p->n + what->block] =
            (struct cst_partials_place){.place = what->place, .machine = machine};
    }
}

/* Tell the home of chunk @c the rank blocks here; if that is this machine, note them. */
static void tell_partials(struct cst_core *core, uint32_t c)
{
    const struct cst_partials *p = &core->partials;
    bool home = core->machines == NULL || cst_membership_is_home(core, c);
    struct cst_machine_message own = {.epoch = core->membership.epoch,
                                      .attempt = core->attempt.number,
                                      .step = core->step,
                                      .chunk = c};

    for (uint32_t b = 0, row = 0; b < p->n; b++) {
        struct cst_machine_message *message = &own;

        if ((p->here >> b & 1) == 0) {
            continue;
        }
        if (!home) {
            message =
                cst_membership_tell(core, cst_membership_home(core, c), CST_MESSAGE_PARTIAL, c);
        }
        message->block = b;
        message->empty = (p->chunks[c].filled >> row & 1) == 0;
        message->place = row_place(core, c, row++);
        if (home) {
            take(core, CST_NONE, &own);
        }
    }
}

/* -- the sum of all --------------------------------------------------------------------------- */

static struct cst_place landing_place(const struct cst_core *core, uint32_t set, uint32_t i)
{
    const struct cst_layout_row *row =
        &core->layout->partial_landings[(size_t)set * core->layout->partials.n_come + i];

    return (struct cst_place){.segment = core->arena_segments[row->segment], .offset = row->offset};
}

/* Add the partials of chunk @c, of which those of other machines are in set @set. */
static void add_all(struct cst_core *core, uint32_t c, uint32_t set)
{
    struct cst_partials *p = &core->partials;
    const struct cst_partials_sum *sum = &p->sums[p->chunks[c].slot];
    struct cst_flight flight = {
        .kind = CST_FLIGHT_REDUCE, .chunk = c, .collection = core->collection.number};
    struct cst_command *reduce =
        cst_core_command(core, CST_COMMAND_REDUCE, core->layout->chunks[c].node, &flight);
    uint32_t landed = 0, own = 0;

    reduce->table = core->table_segment;
    reduce->mark = reduce->ticket;
    reduce->partials = core->grad_fp32 && core->layout->chunks[c].dtype == CST_BF16;
    for (uint32_t b = 0; b < p->n; b++) {
        bool here = (p->here >> b & 1) != 0;

        if ((sum->filled >> b & 1) != 0) {
            reduce->src[reduce->n_src++] =
                here ? row_place(core, c, own) : landing_place(core, set, landed++);
        }
        own += here;
    }
    if (set != CST_NONE) {
        p->sets[set].ticket = reduce->ticket;
    }
    p->chunks[c].state = CST_PARTIALS_ADDING;
    p->n_adding++;
    cst_chunk_update_before(reduce, &core->chunks[c].update);
    cst_collection_adding(core, c, reduce->ticket);
}

static void copy_partial(struct cst_core *core, uint32_t c, uint32_t set, uint32_t b, uint32_t i)
{
    struct cst_partials *p = &core->partials;
    const struct cst_partials_place *from = &p->places[(size_t)p->chunks[c].slot * p->n + b];
    struct cst_flight flight = {.kind = CST_FLIGHT_PARTIAL,
                                .chunk = c,
                                .block = set,
                                .peer = from->machine,
                                .collection = core->collection.number};
    struct cst_command *copy =
        cst_core_command(core, CST_COMMAND_COPY, core->machines->engine, &flight);

    copy->src[copy->n_src++] = from->place;
    copy->dst[copy->n_dst++] = landing_place(core, set, i);
    copy->bytes = cst_layout_grad_bytes(core->layout, &core->layout->chunks[c]);
    p->sets[set].n_left++;
}

/* Copy the partials of chunk @c from other machines to the free set @set. */
static void copy_all(struct cst_core *core, uint32_t c, uint32_t set)
{
    struct cst_partials *p = &core->partials;
    uint64_t come = p->sums[p->chunks[c].slot].filled & ~p->here;
    uint32_t i = 0;

    p->sets[set] = (struct cst_partials_set){.chunk = c};
    p->chunks[c].state = CST_PARTIALS_COPYING;
    for (; come != 0; come &= come - 1) {
        copy_partial(core, c, set, (uint32_t)__builtin_ctzll(come), i++);
    }
}

/* Give free sets of @node to the chunks that wait. */
static void pump(struct cst_core *core, uint32_t node)
{
    struct cst_partials *p = &core->partials;

    for (uint32_t s = node * CST_LAYOUT_PARTIAL_SETS;
         s < (node + 1) * CST_LAYOUT_PARTIAL_SETS && p->first_queued[node] != CST_NONE; s++) {
        uint32_t c = p->first_queued[node];

        if (p->sets[s].chunk != CST_NONE) {
            continue;
        }
        p->first_queued[node] = p->chunks[c].next;
        if (p->first_queued[node] == CST_NONE) {
            p->last_queued[node] = CST_NONE;
        }
        copy_all(core, c, s);
    }
}

static void enqueue(struct cst_core *core, uint32_t c)
{
    struct cst_partials *p = &core->partials;
    uint32_t node = core->layout->chunks[c].node;

    p->chunks[c].state = CST_PARTIALS_QUEUED;
    p->chunks[c].next = CST_NONE;
    if (p->last_queued[node] == CST_NONE) {
        p->first_queued[node] = c;
    } else {
        p->chunks[p->last_queued[node]].next = c;
    }
    p->last_queued[node] = c;
    pump(core, node);
}

/* If chunk @c has its home here and all its partials have come, add them. */
static void look(struct cst_core *core, uint32_t c)
{
    const struct cst_partials *p = &core->partials;
    const struct cst_when now = cst_membership_now(core);
    const struct cst_partials_sum *sum;

    if (p->chunks[c].state != CST_PARTIALS_HERE || p->chunks[c].slot == CST_NONE) {
        return;
    }
    sum = &p->sums[p->chunks[c].slot];
    if (cst_when_compare(&sum->when, &now) != 0 || sum->come != bits_below(p->n)) {
        return;
    }
    if ((sum->filled & ~p->here) == 0) {
        add_all(core, c, CST_NONE);
    } else {
        enqueue(core, c);
    }
}

static void tell_summed(struct cst_core *core, uint32_t c)
{
    struct cst_machine_message *message =
        cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_SUMMED, c);

    message->waited_for = core->partials.sums[core->partials.chunks[c].slot].last;
    message->place = row_place(core, c, 0);
    message->n_squares = cst_tile_squares_read(core, c, core->partials.squares);
    message->squares = core->partials.squares;
}

bool cst_partials_whole(struct cst_core *core, uint32_t c)
{
    struct cst_chunk_partials *chunk = core->partials.on ? &core->partials.chunks[c] : NULL;

    if (chunk == NULL) {
        return true;
    }
    if (chunk->state == CST_PARTIALS_OPEN) {
        chunk->state = CST_PARTIALS_HERE;
        core->partials.n_told++;
        cst_machine_waits_work(core);
        tell_partials(core, c);
        look(core, c);
    } else if (chunk->state == CST_PARTIALS_ADDING) {
        chunk->state = CST_PARTIALS_WHOLE; /* No command of the sum is in flight any more. */
        core->partials.n_adding--;
        cst_machine_waits_work(core);
        if (core->machines != NULL) {
            tell_summed(core, c);
        }
    }
    return chunk->state == CST_PARTIALS_WHOLE;
}

/* -- what is told ----------------------------------------------------------------------------- */

void cst_partials_come(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_machine_message *message = event->message;

    if (message->block >= core->partials.n ||
        core->partials.chunks[message->chunk].slot == CST_NONE) {
        cst_core_log(core, CST_EPROTO,
                     "machine %" PRIu32 " tells rank block %" PRIu32 " of chunk %" PRIu32
                     ", which is not added here",
                     event->machine, message->block, message->chunk);
        return;
    }
    cst_machine_waits_arrived(core, event->machine, CST_MACHINE_UNKNOWN);
    take(core, event->machine, message);
    look(core, message->chunk);
}

/* Copy the sum of chunk @c from @machine, its home, to the grad row here, for the update that
 * repeats that of the home. */
static void copy_sum(struct cst_core *core, uint32_t c, uint32_t machine, struct cst_place from)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_PARTIAL,
                                .chunk = c,
                                .block = CST_NONE,
                                .peer = machine,
                                .collection = core->collection.number};
    struct cst_command *copy =
        cst_core_command(core, CST_COMMAND_COPY, core->machines->engine, &flight);

    copy->src[copy->n_src++] = from;
    copy->dst[copy->n_dst++] = row_place(core, c, 0);
    copy->bytes = cst_layout_grad_bytes(core->layout, &core->layout->chunks[c]);
    core->partials.chunks[c].state = CST_PARTIALS_COPYING;
    cst_chunk_update_before(copy, &core->chunks[c].update);
    cst_collection_replacing(core, c, copy->ticket);
}

void cst_partials_summed(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_machine_message *message = event->message;
    struct cst_chunk_partials *chunk = &core->partials.chunks[message->chunk];
    uint64_t tiles = cst_tile_squares_count(core, message->chunk);

    if (!cst_membership_is_current(core, message) || chunk->state != CST_PARTIALS_HERE) {
        return;
    }
    if (message->n_squares != tiles) {
        struct cst_err why;

        (void)cst_err_set(&why, CST_EPROTO,
                          "machine %" PRIu32 " tells squares of %" PRIu32 " tiles of chunk %" PRIu32
                          ", which has %" PRIu64 " here",
                          event->machine, message->n_squares, message->chunk, tiles);
        cst_fact_job_failed(&core->facts, &why);
        return;
    }
    cst_machine_waits_arrived(core, event->machine, message->waited_for);
    cst_tile_squares_write(core, message->chunk, message->squares);
    if (core->chunks[message->chunk].away) {
        chunk->state = CST_PARTIALS_WHOLE;
        cst_fact_gradient(&core->facts, message->chunk);
    } else {
        copy_sum(core, message->chunk, event->machine, message->place);
    }
}

/* -- completions ------------------------------------------------------------------------------ */

/* A transfer failed: the attempt cannot be committed. */
static void lose(struct cst_core *core, uint32_t c, const struct cst_event *event)
{
    struct cst_err why;

    (void)cst_err_set(&why, CST_EPEERDIED,
                      "gradients of chunk %" PRIu32
                      " could not be copied from another machine in step %" PRIu64 ": %s",
                      c, core->step, cst_event_words(event));
    cst_fact_attempt_lost(&core->facts, &why);
}

/* The sum of a chunk came from its home. */
static void sum_copied(struct cst_core *core, const struct cst_flight *flight,
                       const struct cst_event *event, bool current)
{
    struct cst_gradient *gradient = &core->chunks[flight->chunk].gradient;

    cst_collection_replaced(&core->chunks[flight->chunk], event->status == CST_OK);
    assert(gradient->spill_ticket == 0);
    if (current && event->status == CST_OK) {
        core->partials.chunks[flight->chunk].state = CST_PARTIALS_WHOLE;
    }
    cst_collection_wake(core); /* Contributions can be added to the row again. */
    cst_fact_gradient(&core->facts, flight->chunk);
}

static void free_set(struct cst_core *core, uint32_t set)
{
    core->partials.sets[set] = (struct cst_partials_set){.chunk = CST_NONE};
    pump(core, set / CST_LAYOUT_PARTIAL_SETS);
}

void cst_partials_copied(struct cst_core *core, const struct cst_flight *flight,
                         const struct cst_event *event)
{
    struct cst_partials *p = &core->partials;
    bool current = flight->collection == core->collection.number;
    struct cst_partials_set *set = flight->block != CST_NONE ? &p->sets[flight->block] : NULL;

    if (event->status == CST_OK) {
        cst_machine_waits_arrived(core, flight->peer, CST_MACHINE_UNKNOWN);
    } else if (current) {
        lose(core, flight->chunk, event);
    }
    if (set == NULL) {
        sum_copied(core, flight, event, current);
        return;
    }
    set->failed = set->failed || event->status != CST_OK;
    if (--set->n_left > 0) {
        return;
    }
    if (current && !set->failed) {
        add_all(core, flight->chunk, flight->block);
    } else {
        free_set(core, flight->block);
    }
}

void cst_partials_added(struct cst_core *core, const struct cst_flight *flight)
{
    struct cst_partials *p = &core->partials;
    uint32_t first = core->layout->chunks[flight->chunk].node * CST_LAYOUT_PARTIAL_SETS;

    for (uint32_t s = first; p->on && s < first + CST_LAYOUT_PARTIAL_SETS; s++) {
        if (p->sets[s].chunk != CST_NONE && p->sets[s].ticket == flight->ticket) {
            free_set(core, s);
        }
    }
}

void cst_partials_drop(struct cst_core *core)
{
    struct cst_partials *p = &core->partials;

    p->n_told = p->n_adding = 0;
    for (uint32_t c = 0; p->on && c < core->n_chunks; c++) {
        p->chunks[c].state = CST_PARTIALS_OPEN;
        p->chunks[c].filled = 0;
    }
    for (uint32_t node = 0; p->on && node < core->n_nodes; node++) {
        p->first_queued[node] = p->last_queued[node] = CST_NONE;
    }
}

/* -- invariants ------------------------------------------------------------------------------- */

const char *cst_partials_check(const struct cst_core *core)
{
    const struct cst_partials *p = &core->partials;

    for (uint32_t s = 0; p->on && s < core->n_nodes * CST_LAYOUT_PARTIAL_SETS; s++) {
        const struct cst_partials_set *set = &p->sets[s];

        if (set->chunk != CST_NONE && (set->n_left > 0) == (set->ticket != 0)) {
            return "landings of partials are written, or read by a sum";
        }
        if (set->ticket != 0 && cst_flights_find(&core->flights, set->ticket) == NULL) {
            return "landings of partials are free after their sum";
        }
    }
    for (uint32_t c = 0; p->on && c < core->n_chunks; c++) {
        enum cst_partials_state state = p->chunks[c].state;

        if ((core->chunks[c].gradient.sum == CST_SUM_COMPLETE) != (state == CST_PARTIALS_WHOLE) &&
            (state != CST_PARTIALS_WHOLE || core->attempt.phase == CST_PHASE_RUNNING)) {
            return "a gradient is complete when all partials are added";
        }
        if (state != CST_PARTIALS_OPEN && core->attempt.phase != CST_PHASE_RUNNING) {
            return "partials are those of an attempt that runs";
        }
    }
    return NULL;
}
