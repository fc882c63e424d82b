/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of models that are cut into stages: the table of units, and the core with random workers
 * that come, die and leave in the middle of steps. The sums must be the same in all cases. */
#include "offload/schedule/dispatch.h"
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- the table of units ------------------------------------------------------------------------ */

enum { MAX_STAGES = 6, MAX_MICRO = 6, MAX_RANKS = 5 };

static unsigned seed;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)rand_r(&seed) % n;
}

static void open_table(struct cst_dispatch *d, bool tied)
{
    uint64_t after[MAX_STAGES] = {0};
    uint32_t n_stages = 1 + draw(MAX_STAGES);

    if (tied && n_stages > 1) {
        after[0] = 1ull << (n_stages - 1);
    }
    ck_assert_int_eq(
        cst_dispatch_init(d, n_stages, 1 + draw(MAX_MICRO), 1 + draw(MAX_RANKS), after), CST_OK);
}

/* Random ranks take units, end them, and are gone. Every unit is done once, those of a pass in the
 * order of micro-batches. A rank gets nothing only if another one keeps the first pass that is not
 * done. */
START_TEST(every_unit_is_done_in_order)
{
    struct cst_dispatch d;
    uint32_t done[2 * MAX_STAGES][2] = {{0}}, n_done = 0;

    seed = (unsigned)_i;
    open_table(&d, _i % 2 == 0);
    while (!cst_dispatch_is_complete(&d)) {
        uint32_t rank = draw(d.n_ranks);
        struct cst_work_unit unit, lost;

        if (!cst_dispatch_unit(&d, rank, &unit)) {
            uint32_t keeper;

            ck_assert(cst_dispatch_first(&d, &lost, &keeper));
            ck_assert(cst_dispatch_take(&d, rank, &unit) ||
                      (keeper != CST_DISPATCH_NONE && keeper != rank));
        } else if (draw(5) == 0) {
            ck_assert(cst_dispatch_gone(&d, rank, &lost));
            ck_assert_uint_eq(lost.pass, unit.pass);
            ck_assert_uint_eq(lost.micro, unit.micro);
        } else {
            ck_assert_uint_eq(unit.micro, done[unit.stage][unit.backward]++);
            cst_dispatch_done(&d, rank, unit.micro);
            n_done++;
        }
        ck_assert_ptr_null(cst_dispatch_check(&d));
    }
    ck_assert_uint_eq(n_done, d.n_passes * d.n_micro);
    ck_assert_double_eq(cst_dispatch_loss(d.losses, d.n_micro), (d.n_micro - 1) / 2.0);
    cst_dispatch_close(&d);
}
END_TEST

/* -- the core ---------------------------------------------------------------------------------- */

enum { N_BLOCKS = 5, N_STEPS = 3, MAX_CHUNKS = 12 };

enum at {
    OUT,     /* no process */
    HUNG_UP, /* the connection has ended, and the process lives */
    SYNCING,
    ASKING,    /* for the next unit */
    FETCHING,  /* the weights of a chunk */
    OPENING,   /* the gradient of a chunk */
    STEPPING,  /* waits for the commit */
    COMPUTING, /* ends its unit */
};

/* What a worker has put into a block. */
struct content {
    uint32_t stage, micro;
    bool handed_in; /* and not yet read by a sum that is done */
};

struct worker {
    enum at at;
    uint64_t tag; /* the request that it waits for */
    uint64_t attempt;
    struct cst_work_unit unit; /* number 0: it has had none in this step */
    uint64_t lost;             /* number of a unit whose answer has not reached it; 0: none */
    uint32_t chunks[MAX_CHUNKS], n_chunks, i; /* chunks of the unit, and the current one */
    uint64_t weight, grad;                    /* leases on the current chunk */
    uint64_t offset;                          /* of the gradient in the pool */
    struct content contents[N_BLOCKS];
};

struct walk {
    struct rig rig;
    struct rig_job job;
    struct worker workers[MAX_RANKS];
    uint64_t attempt, step;
    /* Sums of the step: number of contributions of each chunk so far. */
    uint32_t n_added[MAX_CHUNKS];
};

static struct walk w;

static uint32_t stage_of(uint32_t chunk)
{
    return chunk * w.job.n_stages / w.job.n_chunks;
}

static bool uses(uint32_t stage, uint32_t chunk)
{
    return stage_of(chunk) == stage || (w.job.tied && chunk == 0 && stage + 1 == w.job.n_stages);
}

/* Some units have no gradient for some chunk. */
static bool contributes(uint32_t chunk, uint32_t stage, uint32_t micro)
{
    return (chunk * 7 + stage * 3 + micro) % 5 != 0;
}

/* The @n-th contribution to the sum of @chunk. False: there are fewer. */
static bool expected(uint32_t chunk, uint32_t n, struct content *out)
{
    for (uint32_t stage = w.job.n_stages; stage-- > 0;) {
        for (uint32_t micro = 0; uses(stage, chunk) && micro < w.job.micro_batches; micro++) {
            if (contributes(chunk, stage, micro) && n-- == 0) {
                *out = (struct content){.stage = stage, .micro = micro};
                return true;
            }
        }
    }
    return false;
}

static struct content *content_at(const struct cst_place *place)
{
    return &w.workers[place->segment - RIG_POOL_SEGMENT]
                .contents[place->offset / (2 * RIG_CHUNK_ELEMS)];
}

/* A sum was issued: it adds the one contribution whose turn it is. */
static void check_sum(const struct cst_command *reduce)
{
    uint32_t *n = &w.n_added[reduce->chunk];
    struct content right;
    const struct content *got;

    suite_must(reduce->accumulate == (*n > 0), "chunk %u: a sum begins or goes on", reduce->chunk);
    if (reduce->n_src == 0) { /* Zeros, because there was no contribution. */
        suite_must(!expected(reduce->chunk, 0, &right), "chunk %u was left out", reduce->chunk);
        return;
    }
    suite_must(reduce->n_src == 1, "chunk %u: %u contributions at once", reduce->chunk,
               reduce->n_src);
    got = content_at(&reduce->src[0]);
    suite_must(expected(reduce->chunk, *n, &right), "chunk %u has too many contributions",
               reduce->chunk);
    suite_must(got->handed_in && got->stage == right.stage && got->micro == right.micro,
               "chunk %u: contribution %u is of stage %u, micro-batch %u", reduce->chunk, *n,
               got->stage, got->micro);
    ++*n;
}

static void forget_sums(void)
{
    memset(w.n_added, 0, sizeof w.n_added);
    for (uint32_t r = 0; r < MAX_RANKS; r++) {
        memset(w.workers[r].contents, 0, sizeof w.workers[r].contents);
    }
}

/* If a step was committed, its sums are complete. */
static void check_commit(void)
{
    struct cst_core_stats stats = rig_stats(&w.rig);
    struct content more;

    if (stats.step == w.step) {
        return;
    }
    w.step++;
    ck_assert_uint_eq(stats.step, w.step);
    for (uint32_t c = 0; c < w.job.n_chunks; c++) {
        suite_must(!expected(c, w.n_added[c], &more), "chunk %u lacks contributions", c);
    }
    forget_sums();
}

/* Look at what the last event has caused. */
static void check_commands(unsigned n_before)
{
    check_commit();
    for (unsigned i = n_before; i < w.rig.n_commands; i++) {
        const struct cst_command *c = &w.rig.commands[i];

        if (c->kind == CST_COMMAND_REDUCE) {
            check_sum(c);
        }
        for (uint32_t k = 0; k < c->n_dst; k++) {
            suite_must(c->dst[k].segment < RIG_POOL_SEGMENT ||
                           c->dst[k].segment >= RIG_POOL_SEGMENT + MAX_RANKS ||
                           !content_at(&c->dst[k])->handed_in,
                       "a gradient is overwritten before it was added");
        }
    }
}

static uint64_t feed(uint32_t rank, struct cst_event event)
{
    unsigned before = w.rig.n_commands;

    event.rank = rank;
    event.attempt = w.workers[rank].attempt;
    event.tag = rig_event(&w.rig, event);
    check_commands(before);
    return event.tag;
}

static void complete(void)
{
    unsigned i = draw(w.rig.n_commands), before;
    struct cst_command done = w.rig.commands[i];

    for (unsigned k = 0; k < CST_COMMAND_MAX_AFTER; k++) {
        for (unsigned other = 0; done.after[k] != 0 && other < w.rig.n_commands; other++) {
            if (w.rig.commands[other].ticket == done.after[k]) {
                return; /* It waits for another one. */
            }
        }
    }
    if (done.kind == CST_COMMAND_REDUCE && done.n_src > 0) {
        content_at(&done.src[0])->handed_in = false;
    }
    before = w.rig.n_commands - 1;
    rig_done(&w.rig, done.ticket, CST_OK, NULL);
    check_commands(before);
}

/* -- workers ----------------------------------------------------------------------------------- */

static void ask_next(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];

    worker->at = ASKING;
    worker->tag =
        feed(rank, (struct cst_event){.kind = CST_EV_NEXT,
                                      .unit = worker->unit.number,
                                      .names_unit = true,
                                      .loss = worker->unit.backward ? worker->unit.micro : 1e9});
}

static void fetch(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];

    worker->at = FETCHING;
    worker->tag = feed(
        rank, (struct cst_event){.kind = CST_EV_FETCH_WEIGHT, .chunk = worker->chunks[worker->i]});
}

/* The answer with @unit gets lost, and the rank asks again: it must get the same one. */
static void lose_answer(uint32_t rank, const struct cst_work_unit *unit)
{
    w.workers[rank].lost = unit->number;
    ask_next(rank);
}

static void begin_unit(uint32_t rank, const struct cst_work_unit *unit)
{
    struct worker *worker = &w.workers[rank];

    suite_must(unit->number > worker->unit.number, "rank %u: unit %lu after unit %lu", rank,
               (unsigned long)unit->number, (unsigned long)worker->unit.number);
    suite_must(worker->lost == 0 || worker->lost == unit->number,
               "rank %u: unit %lu for the lost unit %lu", rank, (unsigned long)unit->number,
               (unsigned long)worker->lost);
    worker->lost = 0;
    worker->unit = *unit;
    worker->n_chunks = worker->i = 0;
    for (uint32_t i = 0; i < w.job.n_chunks; i++) {
        uint32_t chunk = unit->backward ? w.job.n_chunks - 1 - i : i;

        if (uses(unit->stage, chunk)) {
            worker->chunks[worker->n_chunks++] = chunk;
        }
    }
    fetch(rank);
}

static void sync_rank(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];

    worker->unit = (struct cst_work_unit){0};
    worker->lost = 0;
    worker->at = SYNCING;
    worker->tag = feed(rank, (struct cst_event){.kind = CST_EV_SYNC});
}

static void ask_step(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];

    worker->at = STEPPING;
    worker->tag =
        feed(rank,
             (struct cst_event){
                 .kind = CST_EV_STEP,
                 .hyper = {
                     .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f}});
}

/* The chunk's weights are released, and the next one is fetched, or the unit ends. */
static void end_chunk(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];

    (void)feed(rank, (struct cst_event){.kind = CST_EV_RELEASE,
                                        .chunk = worker->chunks[worker->i],
                                        .generation = worker->weight});
    if (++worker->i < worker->n_chunks) {
        fetch(rank);
    } else {
        ask_next(rank);
    }
}

static void take_lease(struct worker *worker, const struct cst_reply *reply)
{
    worker->offset = reply->offset;
    worker->grad = reply->generation;
    suite_must(!worker->contents[reply->offset / (2 * RIG_CHUNK_ELEMS)].handed_in,
               "a block is granted before its gradient was added");
}

static void hand_in(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];
    struct cst_core_stats before = rig_stats(&w.rig), after;
    struct content *content = &worker->contents[worker->offset / (2 * RIG_CHUNK_ELEMS)];

    *content = (struct content){worker->unit.stage, worker->unit.micro, true};
    (void)feed(rank, (struct cst_event){.kind = CST_EV_HAND_IN,
                                        .chunk = worker->chunks[worker->i],
                                        .generation = worker->grad});
    after = rig_stats(&w.rig);
    if (after.n_dropped > before.n_dropped) {
        content->handed_in = false; /* A rank that is gone did the same. */
    }
}

/* Go on after @reply. */
static void go_on(uint32_t rank, const struct cst_reply *reply)
{
    struct worker *worker = &w.workers[rank];
    uint32_t chunk = worker->chunks[worker->i];

    if (reply->status != CST_OK) {
        suite_must(reply->status == CST_EPEERDIED, "rank %u: %s", rank, reply->err.text);
        sync_rank(rank);
        return;
    }
    switch (worker->at) {
    case SYNCING:
        if (reply->attempt > w.attempt) {
            w.attempt = reply->attempt;
            forget_sums();
        }
        worker->attempt = reply->attempt;
        ask_next(rank);
        break;
    case ASKING:
        if (reply->has_unit && draw(8) == 0) {
            lose_answer(rank, &reply->unit);
        } else if (reply->has_unit) {
            begin_unit(rank, &reply->unit);
        } else {
            ask_step(rank);
        }
        break;
    case FETCHING:
        worker->weight = reply->generation;
        if (worker->unit.backward && contributes(chunk, worker->unit.stage, worker->unit.micro)) {
            worker->at = OPENING;
            worker->tag = feed(rank, (struct cst_event){.kind = CST_EV_FETCH_GRAD, .chunk = chunk});
        } else {
            end_chunk(rank);
        }
        break;
    case OPENING:
        take_lease(worker, reply);
        worker->at = COMPUTING;
        break;
    case STEPPING:
        suite_must(reply->loss == (w.job.micro_batches - 1) / 2.0, "the loss is %g", reply->loss);
        worker->unit = (struct cst_work_unit){0};
        ask_next(rank);
        break;
    case OUT:
    case HUNG_UP:
    case COMPUTING:
        ck_abort_msg("rank %u did not wait", rank);
    }
}

/* Let @rank do what it does next. False: it waits. */
static bool act(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];
    const struct cst_reply *reply;
    struct cst_reply copy;

    switch (worker->at) {
    case OUT:
        (void)feed(rank, (struct cst_event){.kind = CST_EV_ATTACH});
        sync_rank(rank);
        return true;
    case HUNG_UP:
        switch (draw(3)) {
        case 0: /* The process connects again. */
            (void)feed(rank, (struct cst_event){.kind = CST_EV_ATTACH});
            sync_rank(rank);
            break;
        case 1: /* It goes on, and the others do without it. */
            (void)feed(rank, (struct cst_event){.kind = CST_EV_SHUT_OUT});
            break;
        default:
            (void)feed(rank, (struct cst_event){.kind = CST_EV_DEAD});
            worker->at = OUT;
            break;
        }
        return true;
    case COMPUTING:
        hand_in(rank);
        end_chunk(rank);
        return true;
    case SYNCING:
    case ASKING:
    case FETCHING:
    case OPENING:
    case STEPPING:
        break;
    }
    reply = rig_reply(&w.rig, worker->tag);
    if (reply == NULL) {
        return false;
    }
    copy = *reply;
    go_on(rank, &copy);
    return true;
}

/* End @rank in one of the ways in which a worker ends. */
static void end_rank(uint32_t rank)
{
    struct worker *worker = &w.workers[rank];

    if (worker->at == OUT || worker->at == HUNG_UP) {
        return;
    }
    switch (draw(worker->at == SYNCING ? 2 : 4)) {
    case 0:
        (void)feed(rank, (struct cst_event){.kind = CST_EV_HANGUP});
        worker->at = HUNG_UP;
        break;
    case 1:
        (void)feed(rank, (struct cst_event){.kind = CST_EV_LEAVE});
        worker->at = OUT;
        break;
    case 2:
        (void)feed(rank, (struct cst_event){.kind = CST_EV_DEAD});
        worker->at = OUT;
        break;
    default:
        sync_rank(rank); /* It gives up what it does. */
        break;
    }
}

/* Drop the replies that nobody waits for any more. */
static void drop_replies(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w.rig.n_replies; i++) {
        for (uint32_t r = 0; r < w.job.world; r++) {
            if (w.rig.replies[i].tag == w.workers[r].tag) {
                w.rig.replies[n++] = w.rig.replies[i];
                break;
            }
        }
    }
    w.rig.n_replies = n;
}

/* True if someone could act or a command could end: the job is not stuck. */
static bool try_all(void)
{
    for (uint32_t r = 0; r < w.job.world; r++) {
        if (act(r)) {
            return true;
        }
    }
    if (w.rig.n_commands > 0) {
        complete();
        return true;
    }
    return false;
}

static void open_walk(bool tied)
{
    memset(&w, 0, sizeof w);
    w.job = (struct rig_job){.n_chunks = 2 + draw(MAX_CHUNKS - 1),
                             .world = 1 + draw(MAX_RANKS),
                             .n_blocks = N_BLOCKS,
                             .micro_batches = 2 + draw(4),
                             .tied = tied};
    w.job.n_stages = 1 + draw(w.job.n_chunks < MAX_STAGES ? w.job.n_chunks : MAX_STAGES);
    rig_open_job(&w.rig, &w.job);
}

/* Workers run random steps and are ended at random, in every state: they die, hang up, leave, or
 * give up. Each sum has the same contributions in the same order, none twice and none lost. No
 * block is used for something else before its gradient was added. */
START_TEST(sums_do_not_depend_on_the_workers)
{
    uint32_t turns = 0;

    seed = (unsigned)_i;
    open_walk(_i % 2 == 0);
    while (w.step < N_STEPS) {
        uint32_t rank = draw(w.job.world);

        suite_must(turns++ < 200000, "seed %d: the steps do not end", _i);
        drop_replies();
        if (w.rig.n_commands > 0 && draw(3) == 0) {
            complete();
        } else if (_i % 4 != 0 && draw(40) == 0) {
            end_rank(rank);
        } else if (!act(rank)) {
            suite_must(draw(8) != 0 || try_all(), "seed %d: nothing goes on", _i);
        }
    }
    rig_close(&w.rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dispatch");
    TCase *table = suite_case(suite, "table", NULL, NULL);
    TCase *core = suite_case(suite, "core", NULL, NULL);

    tcase_add_loop_test(table, every_unit_is_done_in_order, 0, 200);
    tcase_add_loop_test(core, sums_do_not_depend_on_the_workers, 0, suite_is_sparse() ? 40 : 300);
    return suite_run(suite);
}
