/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/durable.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/budget/arena.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/job.h"
#include "daemon/ledger/describe.h"
#include "daemon/memory/files.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/session/pending.h"
#include "daemon/session/session.h"
#include "daemon/settings/settings.h"
#include "proto/cistern.pb-c.h"
#include "proto/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* -- what is possible ------------------------------------------------------------------------- */

static int check_tensor(const struct cstd_job *job, const struct cst_layout_tensor *tensor,
                        struct cst_err *err)
{
    const struct cst_layout_chunk *chunk = &job->layout.chunks[tensor->chunk];
    bool is_there = false;

    if (!cst_layout_has_states(chunk)) {
        return cst_err_set(err, CST_EINVAL,
                           "job '%s' is to be durable, and tensor '%s' is frozen: it would not be "
                           "in the files; train all tensors, or leave 'durable' out and save",
                           job->name, tensor->name);
    }
    for (uint32_t i = 0; i < job->files.n; i++) {
        is_there = is_there || job->files.v[i].tier->number == chunk->tier;
    }
    return is_there
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "job '%s' is to be durable, and the states of tensor '%s' would "
                             "not be in its files; %s, or leave 'durable' out and save",
                             job->name, tensor->name,
                             chunk->dtype == CST_FP32 ? "make it bf16" : "set device_states to 0");
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

        if (n == 0) {
            errno = EIO;
        }
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

/* A seal under way. First, if the files may not say yet what they are, a thread of the loop's pool
 * makes the description, for which the job must stay. Then a thread of its own writes: a drive that
 * does not answer may keep it for ever, and then it keeps nothing but this. */
struct cstd_durable_work {
    atomic_uint n_refs;   /* That thread, and the handles of the loop; the last one frees. */
    struct cstd_job *job; /* Loop thread. NULL: the job does not wait for it any more. */
    struct list files;    /* Until the thread begins the descriptors are borrowed. */
    bool owns_files;
    uv_work_t describing;
    struct cstd_progress progress;
    struct cst_durable_head head;  /* With the numbers of the description. */
    char *description;             /* Owned. NULL: the files have theirs. */
    struct cst_durable_seal *seal; /* Owned; without id and sum. */
    uint64_t seal_bytes;           /* Of its place. */
    uint64_t sealed_bytes;         /* Of the seal and its checksums. */
    int over;                      /* An eventfd: readable when the thread has ended; -1: none. */
    uv_poll_t poll;                /* Of it. */
    uv_timer_t timer;              /* [disk] timeout of the settings. */
    bool unnamed;                  /* A file has no name any more. */
    struct cst_err err;            /* The result. */
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
        for (int k = 0; k < CST_DURABLE_HEADS && rc == CST_OK; k++) {
            rc = write_blocks(work->files.fds[i], head, sizeof *head,
                              (uint64_t)k * CST_DURABLE_BLOCK, err);
        }
        rc = rc == CST_OK ? flush(work->files.fds[i], err) : rc;
    }
    return rc;
}

/* Make the description, in a thread of the loop's pool. */
static int describe(struct cstd_durable_work *work, struct cst_err *err)
{
    struct cst_durable_head *head = &work->head;

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
    return make_description(work, head, &work->description, err);
}

/* Write the description, then the heads. @block: a block for them. */
static int write_description(const struct cstd_durable_work *work, struct cst_durable_head *block,
                             struct cst_err *err)
{
    const int fd = work->files.fds[0];
    int rc = write_blocks(fd, work->description, work->head.job_bytes + work->head.layout_bytes,
                          work->head.description, err);

    rc = rc == CST_OK ? flush(fd, err) : rc;
    memset(block, 0, CST_DURABLE_BLOCK);
    *block = work->head;
    return rc == CST_OK ? write_heads(work, block, err) : rc;
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
    for (int k = 0; k < CST_DURABLE_HEADS && rc == CST_OK; k++) {
        if (pread(work->files.fds[0], head, CST_DURABLE_BLOCK, (off_t)k * CST_DURABLE_BLOCK) ==
                CST_DURABLE_BLOCK &&
            head->magic == CST_DURABLE_MAGIC && head->sum == head_sum(head)) {
            break;
        }
    }
    if (rc == CST_OK && (head->magic != CST_DURABLE_MAGIC || head->sum != head_sum(head))) {
        rc = work->description != NULL
                 ? write_description(work, head, err)
                 : cst_err_set(err, CST_EIO, "the first block of its first file is damaged");
    }
    memcpy(id, head->id, CST_DURABLE_ID_BYTES);
    free(head);
    return rc;
}

/* -- seals ------------------------------------------------------------------------------------ */

/* True if the file has the record of this step already: a daemon that goes on with a job does not
 * know. It must not be written again, since a record that is torn then was whole before. */
static bool is_sealed(const struct cstd_durable_work *work, uint64_t at)
{
    struct cst_durable_seal *there = blocks(work->seal_bytes);
    uint64_t sum;
    bool same = false;

    if (there != NULL && pread(work->files.fds[0], there, work->seal_bytes, (off_t)at) ==
                             (ssize_t)work->seal_bytes) {
        sum = there->sum;
        there->sum = 0;
        same = there->magic == CST_DURABLE_SEAL_MAGIC && there->step == work->seal->step &&
               there->place == work->seal->place &&
               memcmp(there->id, work->seal->id, sizeof there->id) == 0 &&
               sum == XXH3_64bits(there, work->sealed_bytes);
    }
    free(there);
    return same;
}

/* Everything that makes the step last, in this order. */
static int seal(struct cstd_durable_work *work, struct cst_err *err)
{
    struct cst_durable_seal *record = work->seal;
    const uint64_t at = CST_DURABLE_SEALS + record->step % 2 * work->seal_bytes;
    int rc = prepare(work, record->id, err);

    for (uint32_t i = 0; i < work->files.n && rc == CST_OK; i++) {
        struct stat st;

        rc = flush(work->files.fds[i], err);
        work->unnamed = work->unnamed || (fstat(work->files.fds[i], &st) == 0 && st.st_nlink == 0);
    }
    if (rc != CST_OK || (work->description != NULL && is_sealed(work, at))) {
        return rc;
    }
    record->sum = XXH3_64bits(record, work->sealed_bytes);
    rc = write_blocks(work->files.fds[0], record, work->seal_bytes, at, err);
    return rc == CST_OK ? flush(work->files.fds[0], err) : rc;
}

static void unref(struct cstd_durable_work *work)
{
    if (atomic_fetch_sub(&work->n_refs, 1) > 1) {
        return;
    }
    for (uint32_t i = 0; i < work->files.n && work->owns_files; i++) {
        (void)close(work->files.fds[i]);
    }
    if (work->over >= 0) {
        (void)close(work->over);
    }
    cstd_describe_progress_close(&work->progress);
    free(work->description);
    free(work->seal);
    free(work);
}

static void on_closed(uv_handle_t *handle)
{
    unref(handle->data);
}

/* The loop has done with @work, whose thread was started. */
static void part(struct cstd_durable_work *work)
{
    work->job->durable.work = NULL;
    work->job = NULL;
    uv_close((uv_handle_t *)&work->poll, on_closed);
    uv_close((uv_handle_t *)&work->timer, on_closed);
}

/* Tell the core of @job that the seal has ended with @err. */
static void tell(struct cstd_job *job, const struct cst_err *err)
{
    struct cst_event event = {.kind = CST_EV_SEALED, .status = err->status, .text = err->text};

    if (job->core != NULL && job->state != CSTD_JOB_CLOSING) {
        cstd_job_feed(job, &event);
    }
}

static void on_written(uv_poll_t *poll, int status, int events)
{
    struct cstd_durable_work *work = poll->data;
    struct cstd_job *job = work->job;
    const struct cst_err err = work->err;

    (void)status;
    (void)events;
    job->durable.described = job->durable.described || err.status == CST_OK;
    if (work->unnamed && !job->durable.unnamed) {
        job->durable.unnamed = true;
        cstd_log_about(CSTD_LOG_WARNING, CSTD_JOB_ABOUT(job),
                       "a file of its states was removed: nothing of the job will be left if the "
                       "machine stops; save it");
    }
    part(work);
    tell(job, &err);
}

/* The thread may stay where it is for ever. */
static void on_timeout(uv_timer_t *timer)
{
    struct cstd_durable_work *work = timer->data;
    struct cstd_job *job = work->job;
    struct cst_err err;
    char path[160];

    (void)cst_err_set(
        &err, CST_EIO, "file '%.150s': the drive has not answered for %u s ([disk] timeout)",
        cstd_files_path(work->files.fds[0], path), job->daemon->config->disk_timeout_s);
    part(work);
    tell(job, &err);
}

static void *write_it(void *arg)
{
    struct cstd_durable_work *work = arg;
    const uint64_t one = 1;

    (void)seal(work, &work->err);
    (void)!write(work->over, &one, sizeof one);
    unref(work);
    return NULL;
}

/* The thread has descriptors of its own, because the job may be gone before it ends. */
static int own_files(struct cstd_durable_work *work, struct cst_err *err)
{
    const uint32_t n = work->files.n;

    work->owns_files = true;
    work->files.n = 0;
    while (work->files.n < n) {
        int fd = fcntl(work->files.fds[work->files.n], F_DUPFD_CLOEXEC, 3);

        if (fd < 0) {
            return cst_err_errno(err, CST_ENOMEM, errno, "a descriptor to record a step");
        }
        work->files.fds[work->files.n++] = fd;
    }
    work->over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return work->over >= 0 ? CST_OK
                           : cst_err_errno(err, CST_ENOMEM, errno, "a descriptor to record a step");
}

/* Start the thread that writes. On failure @work is as before, but for its descriptors. */
static int start(struct cstd_durable_work *work, struct cst_err *err)
{
    pthread_t thread;
    int rc = own_files(work, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (uv_poll_init(&work->job->daemon->loop, &work->poll, work->over) != 0) {
        return cst_err_set(err, CST_ENOMEM, "no memory to record a step");
    }
    (void)uv_timer_init(&work->job->daemon->loop, &work->timer);
    work->poll.data = work->timer.data = work;
    /* Both handles, and the thread, which is the first reference from here on. */
    atomic_fetch_add(&work->n_refs, 2);
    if (uv_poll_start(&work->poll, UV_READABLE, on_written) != 0 ||
        pthread_create(&thread, NULL, write_it, work) != 0) {
        uv_close((uv_handle_t *)&work->poll, on_closed);
        uv_close((uv_handle_t *)&work->timer, on_closed);
        return cst_err_set(err, CST_ENOMEM, "no thread to record a step");
    }
    if (work->job->daemon->config->disk_timeout_s > 0) {
        (void)uv_timer_start(&work->timer, on_timeout,
                             UINT64_C(1000) * work->job->daemon->config->disk_timeout_s, 0);
    }
    (void)pthread_detach(thread);
    return CST_OK;
}

static void on_thread(uv_work_t *describing)
{
    struct cstd_durable_work *work = describing->data;

    (void)describe(work, &work->err);
}

/* If the job is removed meanwhile, the removal goes on from here. */
static void on_described(uv_work_t *describing, int status)
{
    struct cstd_durable_work *work = describing->data;
    struct cstd_job *job = work->job;
    struct cst_err err = work->err;

    (void)status; /* libuv's cancellation is not used. */
    job->durable.describing = false;
    if (job->state == CSTD_JOB_CLOSING) {
        cstd_deferred_add(&job->daemon->later, &job->close);
    } else if (err.status == CST_OK && start(work, &err) == CST_OK) {
        return;
    }
    job->durable.work = NULL;
    unref(work);
    tell(job, &err);
}

/* A Leave of @job that waits for a seal; NULL: there is none. */
static struct cstd_pending *next_leave(const struct cstd_job *job)
{
    struct cstd_pending *request;

    TAILQ_FOREACH(request, &job->requests, job_link)
    {
        if (request->waits_seal) {
            return request;
        }
    }
    return NULL;
}

void cstd_durable_look(struct cstd_job *job)
{
    struct cstd_pending *request;

    while (job->spec.states.durable && job->core != NULL && job->state == CSTD_JOB_READY &&
           !cst_core_seals(job->core) && (request = next_leave(job)) != NULL) {
        struct cst_event event = {.kind = CST_EV_LEAVE, .tag = cstd_pending_tag(request, 0)};
        struct cst_core_stats stats;
        struct cst_err why = {0};

        request->waits_seal = false;
        cst_core_stats(job->core, &stats);
        if (stats.phase == CST_PHASE_FAILED || request->session == NULL) {
            /* Nobody is told that all is well: the worker ends, and its rank with it. */
            (void)cst_core_check_attempt(job->core, stats.attempt, &why);
            cstd_session_fail(job->daemon, request, &why);
            continue;
        }
        event.rank = request->session->rank;
        cstd_job_feed(job, &event);
    }
}

void cstd_durable_close(struct cstd_job *job)
{
    if (job->durable.work != NULL) {
        part(job->durable.work);
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

    *out = work;
    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to record a step");
    }
    atomic_init(&work->n_refs, 1);
    work->job = job;
    work->over = -1;
    work->seal_bytes = cst_durable_seal_bytes(n_chunks, n_rows);
    work->sealed_bytes = sizeof *work->seal + (uint64_t)n_chunks * n_rows * 8;
    work->seal = blocks(work->seal_bytes);
    list_files(job, &work->files);
    if (work->seal == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to record a step");
    }
    fill_seal(job, work->seal);
    return CST_OK;
}

int cstd_durable_seal(struct cstd_job *job, struct cst_err *err)
{
    struct cstd_durable_work *work;
    int rc = open_work(job, &work, err);

    if (rc == CST_OK && job->durable.described) {
        rc = start(work, err);
    } else if (rc == CST_OK) {
        rc = cstd_describe_progress(job, &work->progress, err);
        work->describing.data = work;
        if (rc == CST_OK &&
            uv_queue_work(&job->daemon->loop, &work->describing, on_thread, on_described) != 0) {
            rc = cst_err_set(err, CST_ENOMEM, "no thread to describe job '%s'", job->name);
        }
        job->durable.describing = rc == CST_OK;
    }
    if (rc == CST_OK) {
        job->durable.work = work;
    } else if (work != NULL) {
        unref(work);
    }
    return rc;
}
