/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated daemon's handling of requests that no hook handles. */
#include "tests/lib/fake_daemon.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Check that a request is valid. Fails the test otherwise, unless the client receives corrupted
 * replies. */
static bool sane(struct fake_daemon *fake, bool good, const char *what)
{
    ck_assert_msg(good || fake->corrupt != 0, "%s; so far: %s", what, fake->log);
    if (!good) {
        fake_daemon_hang_up(fake);
    }
    return good;
}

static void say(struct fake_daemon *fake, const char *what, uint32_t chunk, const char *suffix)
{
    size_t n = strlen(fake->log);

    (void)snprintf(fake->log + n, sizeof fake->log - n, "%s%s%u%s", n > 0 ? " " : "", what, chunk,
                   suffix);
}

static void reply_ok(struct fake_daemon *fake, const struct cst_frame *request)
{
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_OK, NULL, NULL, 0);
}

static void serve_hello(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Welcome msg = CISTERN__WELCOME__INIT;

    msg.version = 1;
    msg.epoch = 7;
    msg.credits = fake->credits;
    msg.max_batch = fake->max_batch;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_WELCOME, &msg.base, NULL, 0);
}

static void serve_open(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__JobOpened msg = CISTERN__JOB_OPENED__INIT;

    msg.job = 1;
    msg.token.data = (uint8_t *)(uintptr_t) "0123456789abcdef";
    msg.token.len = 16;
    msg.step = fake->step;
    msg.created = true;
    msg.device = (char *)(uintptr_t)(fake->device != NULL ? fake->device : "host");
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_JOB_OPENED, &msg.base, NULL, 0);
}

static void serve_declare(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Declare *msg = cistern__declare__unpack(NULL, request->body_bytes, request->body);

    ck_assert_ptr_nonnull(msg);
    fake->n_tensors += (uint32_t)msg->n_tensors;
    cistern__declare__free_unpacked(msg, NULL);
    reply_ok(fake, request);
}

static void serve_commit(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Commit *asked = cistern__commit__unpack(NULL, request->body_bytes, request->body);
    Cistern__Committed msg = CISTERN__COMMITTED__INIT;
    Cistern__PoolClass class = CISTERN__POOL_CLASS__INIT, *classes = &class;

    ck_assert_ptr_nonnull(asked);
    (void)sane(fake, asked->n_tensors == fake->n_tensors, "commit of another number of tensors");
    (void)sane(fake, fake->n_arenas == 0 || (asked->has_copies && asked->copies),
               "commit of a worker that does not copy");
    cistern__commit__free_unpacked(asked, NULL);
    class.chunk_elems = FAKE_CHUNK_ELEMS;
    class.n_blocks = fake->n_blocks;
    class.min_blocks = 3;
    class.blocks_per_slab = FAKE_BLOCKS_PER_SLAB;
    msg.n_classes = 1;
    msg.classes = &classes;
    msg.n_chunks = (fake->n_tensors + 1) / 2;
    msg.n_slabs = fake->n_slabs;
    msg.n_params = 1;
    msg.arena_bytes = 1;
    msg.pool_bytes = (uint64_t)fake->n_blocks * FAKE_BLOCK_BYTES;
    msg.has_n_arenas = fake->n_arenas > 0;
    msg.n_arenas = fake->n_arenas;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_COMMITTED, &msg.base, NULL, 0);
}

/* A page has at most 1000 tensors. */
static void serve_layout(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__LayoutGet *asked =
        cistern__layout_get__unpack(NULL, request->body_bytes, request->body);
    Cistern__LayoutPart msg = CISTERN__LAYOUT_PART__INIT;
    uint32_t chunk[1000], size_class[1000] = {0};
    uint64_t offset[1000];

    ck_assert_ptr_nonnull(asked);
    msg.first = asked->first;
    msg.chunk = chunk;
    msg.offset = offset;
    msg.size_class = size_class;
    for (uint32_t i = asked->first; i < fake->n_tensors && msg.n_chunk < 1000; i++) {
        chunk[msg.n_chunk++] = i / 2;
        offset[msg.n_offset++] = (i % 2) * FAKE_TENSOR_ELEMS;
    }
    msg.n_size_class = msg.n_chunk;
    cistern__layout_get__free_unpacked(asked, NULL);
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_LAYOUT_PART, &msg.base, NULL, 0);
}

/* A page has two slabs, so that there are several pages. */
static void serve_pool(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__PoolGet *asked = cistern__pool_get__unpack(NULL, request->body_bytes, request->body);
    Cistern__PoolPart msg = CISTERN__POOL_PART__INIT;
    uint64_t bytes[2];

    ck_assert_ptr_nonnull(asked);
    msg.first = asked->first;
    msg.bytes = bytes;
    msg.has_device = fake->device != NULL;
    msg.device = fake->device != NULL;
    while (msg.n_bytes < 2 && msg.first + msg.n_bytes < fake->n_slabs) {
        bytes[msg.n_bytes++] = FAKE_BLOCKS_PER_SLAB * FAKE_BLOCK_BYTES;
    }
    cistern__pool_get__free_unpacked(asked, NULL);
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_POOL_PART, &msg.base,
                      fake->slab_fds + msg.first, (unsigned)msg.n_bytes);
}

/* A page has one arena. */
static void serve_arena(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__ArenaGet *asked = cistern__arena_get__unpack(NULL, request->body_bytes, request->body);
    Cistern__ArenaPart msg = CISTERN__ARENA_PART__INIT;
    uint64_t bytes = (uint64_t)FAKE_ARENA_ROWS * FAKE_BLOCK_BYTES;
    uint32_t segment;

    ck_assert_ptr_nonnull(asked);
    msg.first = asked->first;
    cistern__arena_get__free_unpacked(asked, NULL);
    if (!sane(fake, msg.first < fake->n_arenas, "no such arena")) {
        return;
    }
    segment = FAKE_ARENA_SEGMENT + msg.first;
    msg.n_segment = msg.n_bytes = 1;
    msg.segment = &segment;
    msg.bytes = &bytes;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_ARENA_PART, &msg.base,
                      &fake->arena_fds[msg.first], 1);
}

static void serve_sync(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Synced msg = CISTERN__SYNCED__INIT;

    memset(fake->blocks, 0, sizeof fake->blocks);
    msg.attempt = ++fake->attempt;
    msg.step = fake->step;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_SYNCED, &msg.base, NULL, 0);
}

static char *block_at(struct fake_daemon *fake, uint32_t block)
{
    return fake->slabs[block / FAKE_BLOCKS_PER_SLAB] +
           (size_t)(block % FAKE_BLOCKS_PER_SLAB) * FAKE_BLOCK_BYTES;
}

/* A new block for a gradient is filled with arbitrary bytes, as the protocol allows. */
static void serve_fetch(struct fake_daemon *fake, const Cistern__BatchItem *item,
                        Cistern__ItemResult *result)
{
    bool is_grad = item->kind == CISTERN__BATCH_ITEM__KIND__FETCH_GRAD;
    uint32_t b = 0;

    while (b < fake->n_blocks && fake->blocks[b].used) {
        b++;
    }
    if (!sane(fake, b < fake->n_blocks, "more leases than blocks") ||
        !sane(fake, item->chunk < FAKE_MAX_CHUNKS, "no such chunk")) {
        return;
    }
    fake->blocks[b] = (struct fake_block){.used = true,
                                          .is_grad = is_grad,
                                          .chunk = item->chunk,
                                          .generation = 100 * item->chunk + fake->attempt + b};
    memset(block_at(fake, b), is_grad ? 0xee : 0, FAKE_BLOCK_BYTES);
    if (!is_grad && fake->n_arenas > 0) {
        memset(block_at(fake, b), 0xdd, FAKE_BLOCK_BYTES);
        result->has_home_segment = result->has_home_offset = result->has_home_bytes = true;
        result->home_segment = FAKE_ARENA_SEGMENT + item->chunk % fake->n_arenas;
        result->home_offset = (uint64_t)(item->chunk / fake->n_arenas) * FAKE_BLOCK_BYTES;
        result->home_bytes = FAKE_BLOCK_BYTES;
    } else if (!is_grad) {
        memcpy(block_at(fake, b), fake->weight[item->chunk], sizeof fake->weight[0]);
    }
    result->has_slab = true;
    result->slab = b / FAKE_BLOCKS_PER_SLAB;
    result->has_offset = true;
    result->offset = (uint64_t)(b % FAKE_BLOCKS_PER_SLAB) * FAKE_BLOCK_BYTES;
    result->has_generation = true;
    result->generation = fake->blocks[b].generation;
    result->has_hit = true;
    result->hit = false;
}

static void serve_give_back(struct fake_daemon *fake, const Cistern__BatchItem *item)
{
    bool is_grad = item->kind == CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER;
    uint32_t b = 0;

    while (b < fake->n_blocks && !(fake->blocks[b].used && fake->blocks[b].chunk == item->chunk &&
                                   fake->blocks[b].is_grad == is_grad &&
                                   fake->blocks[b].generation == item->generation)) {
        b++;
    }
    if (!sane(fake, b < fake->n_blocks, "not leased")) {
        return;
    }
    if (!is_grad && fake->n_arenas > 0 &&
        !sane(fake,
              memcmp(block_at(fake, b), fake_daemon_row(fake, item->chunk), FAKE_BLOCK_BYTES) == 0,
              "released before it was copied")) {
        return;
    }
    if (is_grad) {
        free(fake->grads[item->chunk]);
        fake->grads[item->chunk] = malloc(FAKE_BLOCK_BYTES);
        ck_assert_ptr_nonnull(fake->grads[item->chunk]);
        memcpy(fake->grads[item->chunk], block_at(fake, b), FAKE_BLOCK_BYTES);
    }
    fake->blocks[b].used = false;
}

static void serve_item(struct fake_daemon *fake, const Cistern__BatchItem *item,
                       Cistern__ItemResult *result)
{
    static const char *const names[] = {"", "W", "G", "r", "R", "p", "e"};

    if (item->kind == CISTERN__BATCH_ITEM__KIND__WANT) {
        return; /* whether this request comes depends on the speed of earlier replies */
    }
    say(fake, names[item->kind], item->chunk, item->has_ahead && item->ahead ? "+" : "");
    if (item->kind == CISTERN__BATCH_ITEM__KIND__FETCH_WEIGHT ||
        item->kind == CISTERN__BATCH_ITEM__KIND__FETCH_GRAD) {
        serve_fetch(fake, item, result);
    } else if (item->kind == CISTERN__BATCH_ITEM__KIND__RELEASE ||
               item->kind == CISTERN__BATCH_ITEM__KIND__REDUCE_SCATTER) {
        serve_give_back(fake, item);
    }
}

static void serve_batch(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Batch *asked = cistern__batch__unpack(NULL, request->body_bytes, request->body);
    Cistern__BatchDone msg = CISTERN__BATCH_DONE__INIT;
    Cistern__ItemResult results[64], *pointers[64];

    ck_assert_ptr_nonnull(asked);
    if (!sane(fake, asked->n_items <= fake->max_batch && asked->n_items <= 64, "batch too large")) {
        cistern__batch__free_unpacked(asked, NULL);
        return;
    }
    msg.results = pointers;
    msg.n_results = asked->n_items;
    for (size_t i = 0; i < asked->n_items; i++) {
        cistern__item_result__init(&results[i]);
        pointers[i] = &results[i];
        if (asked->attempt == fake->attempt) {
            serve_item(fake, asked->items[i], &results[i]);
        } else {
            results[i].status = CST_EPEERDIED;
        }
    }
    cistern__batch__free_unpacked(asked, NULL);
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_BATCH_DONE, &msg.base, NULL, 0);
}

static void serve_step(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Step *asked = cistern__step__unpack(NULL, request->body_bytes, request->body);
    Cistern__Stepped msg = CISTERN__STEPPED__INIT;

    ck_assert_ptr_nonnull(asked);
    fake->hyper = *asked->hyper;
    say(fake, "S", (uint32_t)fake->step, "");
    msg.step = ++fake->step;
    msg.grad_norm = 2.0;
    msg.clip = 0.5f;
    msg.loss = asked->loss;
    cistern__step__free_unpacked(asked, NULL);
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_STEPPED, &msg.base, NULL, 0);
}

static void serve_prepare(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__PrepareStep *asked =
        cistern__prepare_step__unpack(NULL, request->body_bytes, request->body);

    ck_assert_ptr_nonnull(asked);
    (void)sane(fake, asked->attempt == fake->attempt, "a step of another attempt is prepared");
    fake->hyper = *asked->hyper;
    say(fake, "P", (uint32_t)fake->step, "");
    cistern__prepare_step__free_unpacked(asked, NULL);
    reply_ok(fake, request);
}

static void serve_accumulate(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__Accumulate *asked =
        cistern__accumulate__unpack(NULL, request->body_bytes, request->body);
    size_t n = strlen(fake->log);

    ck_assert_ptr_nonnull(asked);
    (void)sane(fake, asked->attempt == fake->attempt, "a micro-batch of another attempt");
    cistern__accumulate__free_unpacked(asked, NULL);
    (void)snprintf(fake->log + n, sizeof fake->log - n, "%sA", n > 0 ? " " : "");
    reply_ok(fake, request);
}

static void serve_staging(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__StagingPart msg = CISTERN__STAGING_PART__INIT;

    msg.bytes = fake->staging_bytes;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_STAGING_PART, &msg.base,
                      &fake->staging_fd, 1);
}

static void serve_io(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__TensorIo *io = cistern__tensor_io__unpack(NULL, request->body_bytes, request->body);
    size_t size;

    ck_assert_ptr_nonnull(io);
    size = io->row == CISTERN__TENSOR_IO__ROW__WEIGHT || io->row == CISTERN__TENSOR_IO__ROW__GRAD
               ? 2
               : 4;
    if (!sane(fake, io->staging_offset + io->n_elems * size <= fake->staging_bytes, "too much")) {
        cistern__tensor_io__free_unpacked(io, NULL);
        return;
    }
    if (request->type == CISTERN__MSG_TYPE__MSG_TENSOR_READ) {
        memcpy(fake->staging + io->staging_offset, fake->states + io->first * size,
               io->n_elems * size);
    } else {
        memcpy(fake->states + io->first * size, fake->staging + io->staging_offset,
               io->n_elems * size);
    }
    cistern__tensor_io__free_unpacked(io, NULL);
    reply_ok(fake, request);
}

static void serve_info(struct fake_daemon *fake, const struct cst_frame *request)
{
    Cistern__JobInfoReply msg = CISTERN__JOB_INFO_REPLY__INIT;
    Cistern__JobInfo job = CISTERN__JOB_INFO__INIT;
    Cistern__RankInfo rank = CISTERN__RANK_INFO__INIT, *ranks = &rank;

    msg.job = &job;
    job.name = job.state = rank.state = (char *)(uintptr_t) "x";
    job.step = fake->step;
    job.ranks = &ranks;
    job.n_ranks = 1;
    rank.has_hits = true;
    rank.hits = 5;
    rank.has_late = rank.has_weight_wait_seconds = true;
    rank.late = 3;
    rank.weight_wait_seconds = 0.5;
    job.has_exposed_seconds = true;
    job.exposed_seconds = 0.25;
    fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_JOB_INFO_REPLY, &msg.base, NULL, 0);
}

void fake_daemon_serve(struct fake_daemon *fake, const struct cst_frame *request)
{
    switch (request->type) {
    case CISTERN__MSG_TYPE__MSG_HELLO:
        serve_hello(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_PING:
        fake_daemon_reply(fake, request, CISTERN__MSG_TYPE__MSG_PONG, NULL, NULL, 0);
        break;
    case CISTERN__MSG_TYPE__MSG_JOB_OPEN:
        serve_open(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_DECLARE:
        serve_declare(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_COMMIT:
        serve_commit(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_LAYOUT:
        serve_layout(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_POOL:
        serve_pool(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_ARENA:
        serve_arena(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_SYNC:
        serve_sync(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_BATCH:
        serve_batch(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_STEP:
        serve_step(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_PREPARE_STEP:
        serve_prepare(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_ACCUMULATE:
        serve_accumulate(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_STAGING:
        serve_staging(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_TENSOR_READ:
    case CISTERN__MSG_TYPE__MSG_TENSOR_WRITE:
        serve_io(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_JOB_INFO:
        serve_info(fake, request);
        break;
    case CISTERN__MSG_TYPE__MSG_LEAVE:
        reply_ok(fake, request);
        break;
    default:
        fake_daemon_error(fake, request, CST_EUNSUPPORTED, "the fake daemon does not know this");
        break;
    }
}
