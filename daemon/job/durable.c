/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/durable.h"

#include "daemon/base/daemon_state.h"
#include "daemon/budget/arena.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/job.h"
#include "daemon/ledger/describe.h"
#include "daemon/memory/files.h"
#include "proto/cistern.pb-c.h"
#include "proto/durable.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

/* -- what is possible ------------------------------------------------------------------------- */

static int check_tensor(const struct cstd_job *job, const struct cst_layout_tensor *tensor,
                        struct cst_err *err)
{
    const struct cst_layout_chunk *chunk = &job->layout.chunks[tensor->chunk];

    if (!cst_layout_has_states(chunk)) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s' is to be durable, and tensor '%s' is frozen: it would not be "
                           "in the files; train all tensors, or leave 'durable' out and save",
                           job->name, tensor->name);
    }
    return cst_tier_is_apart(chunk->tier)
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "job '%s' is to be durable, and the states of tensor '%s', which is "
                             "%s, would be in memory; make it bf16, or leave 'durable' out and "
                             "save",
                             job->name, tensor->name,
                             chunk->dtype == CST_FP32 ? "fp32"
                                                      : "too large for the files' buffers");
}

int cstd_durable_check(const struct cstd_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    if (!job->spec.states.durable) {
        return CST_OK;
    }
    if (job->files.n == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s' is to be durable, and rank 0 has given no files: set 'disk' "
                           "to a directory on a drive",
                           job->name);
    }
    for (uint32_t t = 0; t < job->model.n_tensors && rc == CST_OK; t++) {
        rc = check_tensor(job, &job->model.tensors[t], err);
    }
    return rc;
}

/* -- files ------------------------------------------------------------------------------------ */

/* The files of a job that have states, by number. */
struct list {
    uint32_t tiers[CST_LAYOUT_MAX_DEVICES]; /* The number of each one's drive. */
    int fds[CST_LAYOUT_MAX_DEVICES];        /* Borrowed from segments. */
    uint64_t ends[CST_LAYOUT_MAX_DEVICES];  /* Where the last segment of each ends. */
    uint32_t n;
};

static uint32_t file_of(const struct list *files, uint32_t tier)
{
    uint32_t i = 0;

    while (i < files->n && files->tiers[i] != tier) {
        i++;
    }
    return i;
}

/* Arenas are the first segments, in the order of the layout. */
static void list_files(const struct cstd_job *job, struct list *out)
{
    out->n = 0;
    for (uint32_t s = 0; s < job->layout.n_segments; s++) {
        const struct cstd_segment *segment = job->memory.segments[s];
        uint32_t i = file_of(out, job->layout.segments[s].tier);

        if (job->layout.segments[s].twin == 0) {
            continue;
        }
        if (i == out->n) {
            out->tiers[i] = job->layout.segments[s].tier;
            out->fds[i] = segment->fd;
            out->ends[out->n++] = 0;
        }
        if (segment->file_offset + segment->bytes > out->ends[i]) {
            out->ends[i] = segment->file_offset + segment->bytes;
        }
    }
}

/* Transfers begin and end at blocks, in the file and in memory. */
static void *blocks(uint64_t bytes)
{
    void *at = aligned_alloc(CST_DURABLE_BLOCK, cst_round_up(bytes, CST_DURABLE_BLOCK));

    if (at != NULL) {
        memset(at, 0, cst_round_up(bytes, CST_DURABLE_BLOCK));
    }
    return at;
}

static int fail(int fd, const char *what, uint64_t at, struct cst_err *err)
{
    int errnum = errno;
    char path[160];

    return cst_err_errno(err, CST_EIO, errnum, "file '%.150s': %s at %" PRIu64,
                         cstd_files_path(fd, path), what, at);
}

static int write_blocks(int fd, const void *from, uint64_t bytes, uint64_t at, struct cst_err *err)
{
    const char *next = from;
    uint64_t left = cst_round_up(bytes, CST_DURABLE_BLOCK);

    while (left > 0) {
        ssize_t n = pwrite(fd, next, left, (off_t)at);

        if (n <= 0 && errno != EINTR) {
            return fail(fd, "write", at, err);
        }
        n = n > 0 ? n - n % CST_DURABLE_BLOCK : 0;
        next += n;
        at += (uint64_t)n;
        left -= (uint64_t)n;
    }
    return CST_OK;
}

static int flush(int fd, struct cst_err *err)
{
    return fdatasync(fd) == 0 ? CST_OK : fail(fd, "flush", 0, err);
}

/* -- description ------------------------------------------------------------------------------ */

struct cstd_durable_work {
    uv_work_t work;
    struct cstd_job *job; /* Its model, layout and segments stay until the work is over. */
    struct list files;
    bool describes; /* The files may not say yet what they are. */
    struct cstd_progress progress;
    struct cst_durable_seal *seal; /* Owned; without id and sum. */
    uint64_t seal_bytes;           /* Of its place. */
    uint64_t sealed_bytes;         /* Of the seal and its checksums. */
    struct cst_err err;
};

static uint64_t head_sum(const struct cst_durable_head *head)
{
    return XXH3_64bits(head, offsetof(struct cst_durable_head, sum));
}

/* Places of rows, which point into each other. */
struct places {
    Cistern__DurableLayout message;
    Cistern__DurableChunk *chunks, **chunk_list;
    Cistern__DurableRow *rows, **row_list;
    uint64_t *offsets;
};

static void free_places(struct places *places)
{
    free(places->chunks);
    free(places->chunk_list);
    free(places->rows);
    free(places->row_list);
    free(places->offsets);
}

static void describe_chunk(const struct cstd_durable_work *work, struct places *places, uint32_t c)
{
    const struct cstd_job *job = work->job;
    const struct cst_layout_chunk *chunk = &job->layout.chunks[c];
    Cistern__DurableChunk *out = &places->chunks[c];

    cistern__durable_chunk__init(out);
    out->n_elems = chunk->n_elems;
    out->rows = &places->row_list[(size_t)c * CST_ROW_COUNT];
    for (int r = CST_ROW_MASTER; r < CST_ROW_COUNT; r++) {
        const struct cst_layout_row *row = &chunk->rows[r];
        Cistern__DurableRow *to = &places->rows[(size_t)c * CST_ROW_COUNT + out->n_rows];

        if (row->segment == CST_LAYOUT_NO_ROW) {
            continue;
        }
        cistern__durable_row__init(to);
        to->row = (uint32_t)r;
        to->file = file_of(&work->files, job->layout.segments[row->segment].tier);
        to->offset = job->memory.segments[row->segment]->file_offset + row->offset;
        to->twin = job->layout.segments[row->segment].twin;
        to->bytes = cst_layout_chunk_row_bytes(&job->layout, chunk, r, chunk->n_elems);
        out->rows[out->n_rows++] = to;
    }
}

static bool make_places(const struct cstd_durable_work *work, struct places *places)
{
    const struct cstd_job *job = work->job;
    const size_t n = job->layout.n_chunks, n_rows = n * CST_ROW_COUNT;

    *places = (struct places){.chunks = calloc(n + 1, sizeof *places->chunks),
                              .chunk_list = calloc(n + 1, sizeof(void *)),
                              .rows = calloc(n_rows + 1, sizeof *places->rows),
                              .row_list = calloc(n_rows + 1, sizeof(void *)),
                              .offsets = calloc(job->model.n_tensors + 1u, sizeof(uint64_t))};
    if (places->chunks == NULL || places->chunk_list == NULL || places->rows == NULL ||
        places->row_list == NULL || places->offsets == NULL) {
        return false;
    }
    cistern__durable_layout__init(&places->message);
    for (uint32_t c = 0; c < n; c++) {
        describe_chunk(work, places, c);
        places->chunk_list[c] = &places->chunks[c];
    }
    for (uint32_t t = 0; t < job->model.n_tensors; t++) {
        places->offsets[t] = job->model.tensors[t].offset;
    }
    places->message.n_chunks = n;
    places->message.chunks = places->chunk_list;
    places->message.n_offset = job->model.n_tensors;
    places->message.offset = places->offsets;
    return true;
}

/* Make the description of the job and of its files. The caller frees *out. */
static int make_description(struct cstd_durable_work *work, struct cst_durable_head *head,
                            char **out, struct cst_err *err)
{
    struct cstd_description made = {.fd = -1};
    struct places places = {.chunks = NULL};
    int rc = cstd_describe_make(work->job, &work->progress, &made, err);
    char *data = NULL;

    if (rc == CST_OK && make_places(work, &places)) {
        head->job_bytes = made.bytes;
        head->layout_bytes = cistern__durable_layout__get_packed_size(&places.message);
        data = blocks(head->job_bytes + head->layout_bytes);
    }
    if (rc == CST_OK &&
        (data == NULL || pread(made.fd, data, made.bytes, 0) != (ssize_t)made.bytes)) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory to describe job '%s'", work->job->name);
    }
    if (rc == CST_OK) {
        (void)cistern__durable_layout__pack(&places.message, (uint8_t *)data + head->job_bytes);
        head->description_sum = XXH3_64bits(data, head->job_bytes + head->layout_bytes);
        *out = data;
    } else {
        free(data);
    }
    free_places(&places);
    if (made.fd >= 0) {
        (void)close(made.fd);
    }
    return rc;
}

/* Write the heads: that of the first file last, so that it is there when all others are. */
static int write_heads(const struct cstd_durable_work *work, struct cst_durable_head *head,
                       struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = work->files.n; i-- > 0 && rc == CST_OK;) {
        head->file = i;
        head->sum = head_sum(head);
        rc = write_blocks(work->files.fds[i], head, sizeof *head, 0, err);
        rc = rc == CST_OK ? flush(work->files.fds[i], err) : rc;
    }
    return rc;
}

static int describe(struct cstd_durable_work *work, struct cst_durable_head *head,
                    struct cst_err *err)
{
    char *data = NULL;
    int rc;

    *head = (struct cst_durable_head){.magic = CST_DURABLE_MAGIC,
                                      .order = CST_DURABLE_ORDER,
                                      .format = CST_DURABLE_FORMAT,
                                      .n_files = work->files.n,
                                      .n_chunks = work->job->layout.n_chunks,
                                      .n_rows = CST_ROW_COUNT - CST_ROW_MASTER,
                                      .seal_bytes = work->seal_bytes,
                                      .description =
                                          cst_round_up(work->files.ends[0], CST_DURABLE_BLOCK)};
    if (getrandom(head->id, sizeof head->id, 0) != sizeof head->id) {
        return cst_err_errno(err, CST_EIO, errno, "random bytes");
    }
    rc = make_description(work, head, &data, err);
    if (rc != CST_OK) {
        return rc;
    }
    rc = write_blocks(work->files.fds[0], data, head->job_bytes + head->layout_bytes,
                      head->description, err);
    rc = rc == CST_OK ? flush(work->files.fds[0], err) : rc;
    free(data);
    return rc == CST_OK ? write_heads(work, head, err) : rc;
}

/* Find the id of the files, and describe them if nobody has. */
static int prepare(struct cstd_durable_work *work, uint8_t id[CST_DURABLE_ID_BYTES],
                   struct cst_err *err)
{
    struct cst_durable_head *head = blocks(CST_DURABLE_BLOCK);
    int rc = CST_OK;

    if (head == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a block");
    }
    if (pread(work->files.fds[0], head, CST_DURABLE_BLOCK, 0) != CST_DURABLE_BLOCK) {
        rc = fail(work->files.fds[0], "read", 0, err);
    } else if (head->magic != CST_DURABLE_MAGIC || head->sum != head_sum(head)) {
        rc = work->describes ? describe(work, head, err)
                             : cst_err_set(err, CST_EIO, "the head of its first file is damaged");
    }
    memcpy(id, head->id, CST_DURABLE_ID_BYTES);
    free(head);
    return rc;
}

/* -- seals ------------------------------------------------------------------------------------ */

/* Everything that makes the step last, in this order. */
static int seal(struct cstd_durable_work *work, struct cst_err *err)
{
    struct cst_durable_seal *record = work->seal;
    int rc = prepare(work, record->id, err);

    for (uint32_t i = 0; i < work->files.n && rc == CST_OK; i++) {
        rc = flush(work->files.fds[i], err);
    }
    if (rc == CST_OK) {
        record->sum = XXH3_64bits(record, work->sealed_bytes);
        rc = write_blocks(work->files.fds[0], record, work->seal_bytes,
                          CST_DURABLE_BLOCK + record->step % 2 * work->seal_bytes, err);
    }
    return rc == CST_OK ? flush(work->files.fds[0], err) : rc;
}

static void on_thread(uv_work_t *uv_work)
{
    struct cstd_durable_work *work = uv_work->data;

    (void)seal(work, &work->err);
}

static void close_work(struct cstd_durable_work *work)
{
    cstd_describe_progress_close(&work->progress);
    free(work->seal);
    free(work);
}

/* If the job is removed meanwhile, the removal goes on from here. */
static void on_thread_done(uv_work_t *uv_work, int status)
{
    struct cstd_durable_work *work = uv_work->data;
    struct cstd_job *job = work->job;
    struct cst_event event = {.kind = CST_EV_SEALED, .status = work->err.status};
    char text[sizeof work->err.text];

    (void)status; /* libuv's cancellation is not used. */
    memcpy(text, work->err.text, sizeof text);
    event.text = text;
    job->durable.work = NULL;
    job->durable.described = job->durable.described || work->err.status == CST_OK;
    close_work(work);
    if (job->state == CSTD_JOB_CLOSING) {
        cstd_deferred_add(&job->daemon->later, &job->close);
    } else if (job->core != NULL) {
        cstd_job_feed(job, &event);
    }
}

/* Write what the core says of the last step. */
static void fill_seal(const struct cstd_job *job, struct cst_durable_seal *out)
{
    struct cst_core_stats stats;
    struct cst_core_seal of;

    cst_core_stats(job->core, &stats);
    cst_core_seal_of(job->core, &of);
    out->magic = CST_DURABLE_SEAL_MAGIC;
    out->step = stats.step;
    out->adam_step = stats.adam_step;
    out->n_skipped = stats.n_skipped;
    out->n_overflows = stats.n_overflows;
    out->last_loss = stats.last_loss;
    out->last_grad_norm = stats.last_grad_norm;
    out->has_hyper = stats.has_hyper;
    out->lr = stats.hyper.lr;
    out->beta1 = stats.hyper.beta1;
    out->beta2 = stats.hyper.beta2;
    out->eps = stats.hyper.eps;
    out->weight_decay = stats.hyper.weight_decay;
    out->clip_norm = stats.hyper.clip_norm;
    out->grad_scale = stats.hyper.grad_scale;
    out->place = of.place;
    memcpy(out->sums, of.sums, (size_t)job->layout.n_chunks * of.n_rows * sizeof *out->sums);
}

static int open_work(struct cstd_job *job, struct cstd_durable_work **out, struct cst_err *err)
{
    const uint32_t n_rows = CST_ROW_COUNT - CST_ROW_MASTER, n_chunks = job->layout.n_chunks;
    struct cstd_durable_work *work = calloc(1, sizeof *work);

    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to record a step");
    }
    work->work.data = work;
    work->job = job;
    work->describes = !job->durable.described;
    work->seal_bytes = cst_durable_seal_bytes(n_chunks, n_rows);
    work->sealed_bytes = sizeof *work->seal + (uint64_t)n_chunks * n_rows * 8;
    work->seal = blocks(work->seal_bytes);
    list_files(job, &work->files);
    if (work->seal == NULL) {
        close_work(work);
        return cst_err_set(err, CST_ENOMEM, "no memory to record a step");
    }
    fill_seal(job, work->seal);
    *out = work;
    return work->describes ? cstd_describe_progress(job, &work->progress, err) : CST_OK;
}

int cstd_durable_seal(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_durable_work *work = NULL;
    int rc = open_work(job, &work, err);

    if (rc == CST_OK &&
        uv_queue_work(&job->daemon->loop, &work->work, on_thread, on_thread_done) != 0) {
        rc = cst_err_set(err, CST_ENOMEM, "no thread to record a step");
    }
    if (rc != CST_OK && work != NULL) {
        close_work(work);
        return rc;
    }
    job->durable.work = work;
    return rc;
}
