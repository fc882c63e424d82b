/* SPDX-License-Identifier: Apache-2.0 */
/* Readers (cistern/reader.h): a connection of their own, and the mapped weights of a job. The
 * daemon knows which versions a reader holds, and whether one of them is overwritten. */
#include "cistern/reader.h"

#include "client/lib/call.h"
#include "client/lib/client.h"
#include "proto/cistern.pb-c.h"
#include "proto/clock.h"
#include "proto/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Where the weights of a tensor are, by weight row. */
struct place {
    uint32_t segment;
    uint64_t offset;
};

struct tensor {
    struct cst_reader_tensor info;
    uint32_t n_places;
    struct place places[CST_MAX_VERSIONS];
};

struct mapping {
    void *base; /* NULL: the segment has no weights. */
    uint64_t bytes;
};

struct cst_reader {
    struct cst_client *client;
    char *model_config, *adapter_config; /* NULL: the job has none. */
    uint32_t n_tensors, n_segments, versions;
    struct tensor *tensors;
    struct mapping *segments;
};

/* -- opening ---------------------------------------------------------------------------------- */

/* Copy @text, which can be NULL, to *out. False: no memory. */
static bool copy_text(const char *text, char **out)
{
    *out = text != NULL ? strdup(text) : NULL;
    return text == NULL || *out != NULL;
}

static int open_job(struct cst_reader *reader, const char *job, struct cst_err *err)
{
    Cistern__JobName msg = CISTERN__JOB_NAME__INIT;
    const Cistern__ReaderOpened *opened;
    struct cstc_call call = {0};
    bool copied;
    int rc;

    msg.name = (char *)(uintptr_t)job;
    rc = cstc_call_sync(reader->client, &call, CISTERN__MSG_TYPE__MSG_READER_OPEN, &msg.base,
                        CISTERN__MSG_TYPE__MSG_READER_OPENED, &cistern__reader_opened__descriptor,
                        err);
    if (rc != CST_OK) {
        return rc;
    }
    opened = (const Cistern__ReaderOpened *)call.reply;
    reader->n_segments = opened->n_arenas;
    reader->n_tensors = opened->n_tensors;
    reader->versions = opened->versions;
    copied = copy_text(opened->model_config, &reader->model_config) &&
             copy_text(opened->adapter_config, &reader->adapter_config);
    cstc_call_reset(&call);
    reader->tensors =
        calloc(reader->n_tensors > 0 ? reader->n_tensors : 1, sizeof *reader->tensors);
    reader->segments =
        calloc(reader->n_segments > 0 ? reader->n_segments : 1, sizeof *reader->segments);
    return copied && reader->tensors != NULL && reader->segments != NULL
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " tensors",
                             reader->n_tensors);
}

/* Keep @info as tensor @t. */
static int take_tensor(struct tensor *t, const Cistern__TensorInfo *info, struct cst_err *err)
{
    int64_t *shape = malloc((info->n_shape > 0 ? info->n_shape : 1) * sizeof *shape);
    char *file_name = NULL;
    const bool copied = copy_text(info->file_name, &file_name);

    t->info.name = strdup(info->name);
    t->info.file_name = file_name;
    t->info.shape = shape;
    if (shape == NULL || t->info.name == NULL || !copied) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a tensor");
    }
    memcpy(shape, info->shape, info->n_shape * sizeof *shape);
    t->info.n_dims = (uint32_t)info->n_shape;
    t->info.dtype = strcmp(info->dtype, "fp32") == 0 ? CST_FP32 : CST_BF16;
    t->info.frozen = strcmp(info->pattern, "frozen") == 0;
    t->info.bytes = info->weight_bytes;
    t->n_places = info->n_weight_segment < CST_MAX_VERSIONS ? (uint32_t)info->n_weight_segment
                                                            : CST_MAX_VERSIONS;
    if (t->n_places == 0 || info->n_weight_offset < t->n_places) {
        return cst_err_set(err, CST_EPROTO, "the daemon does not say where tensor '%.100s' is",
                           info->name);
    }
    for (uint32_t i = 0; i < t->n_places; i++) {
        t->places[i] = (struct place){info->weight_segment[i], info->weight_offset[i]};
    }
    return CST_OK;
}

static int get_tensors(struct cst_reader *reader, const char *job, struct cst_err *err)
{
    Cistern__TensorsGet msg = CISTERN__TENSORS_GET__INIT;
    int rc = CST_OK;

    msg.job = (char *)(uintptr_t)job;
    while (rc == CST_OK && msg.first < reader->n_tensors) {
        const Cistern__TensorsPart *part;
        struct cstc_call call = {0};

        rc = cstc_call_sync(reader->client, &call, CISTERN__MSG_TYPE__MSG_TENSORS, &msg.base,
                            CISTERN__MSG_TYPE__MSG_TENSORS_PART, &cistern__tensors_part__descriptor,
                            err);
        if (rc != CST_OK) {
            return rc;
        }
        part = (const Cistern__TensorsPart *)call.reply;
        if (part->n_tensors == 0 || part->n_tensors > reader->n_tensors - msg.first) {
            rc = cst_err_set(err, CST_EPROTO,
                             "the daemon names %zu tensors from %" PRIu32 " on, of %" PRIu32,
                             part->n_tensors, msg.first, reader->n_tensors);
        }
        for (size_t i = 0; rc == CST_OK && i < part->n_tensors; i++) {
            rc = take_tensor(&reader->tensors[msg.first + i], part->tensors[i], err);
        }
        msg.first += (uint32_t)part->n_tensors;
        cstc_call_reset(&call);
    }
    return rc;
}

static int map_segment(struct mapping *segment, int fd, uint64_t bytes, struct cst_err *err)
{
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

    if (base == MAP_FAILED) {
        return cst_err_set(err, CST_ENOMEM, "%" PRIu64 " bytes of weights cannot be mapped: %m",
                           bytes);
    }
    (void)madvise(base, bytes, MADV_DONTFORK);
    *segment = (struct mapping){base, bytes};
    return CST_OK;
}

static int map_segments(struct cst_reader *reader, struct cst_err *err)
{
    Cistern__ArenaGet msg = CISTERN__ARENA_GET__INIT;
    int rc = CST_OK;

    for (; rc == CST_OK && msg.first < reader->n_segments; msg.first += CST_FRAME_MAX_FDS) {
        struct cstc_call call = {.max_fds = CST_FRAME_MAX_FDS};
        const Cistern__ArenaPart *part;

        rc = cstc_call_sync(reader->client, &call, CISTERN__MSG_TYPE__MSG_READER_ARENA, &msg.base,
                            CISTERN__MSG_TYPE__MSG_ARENA_PART, &cistern__arena_part__descriptor,
                            err);
        if (rc != CST_OK) {
            return rc;
        }
        part = (const Cistern__ArenaPart *)call.reply;
        if (part->n_segment != call.n_fds || part->n_bytes != call.n_fds) {
            rc = cst_err_set(err, CST_EPROTO, "%u descriptors for %zu segments", call.n_fds,
                             part->n_segment);
        }
        for (unsigned i = 0; rc == CST_OK && i < call.n_fds; i++) {
            rc = part->segment[i] < reader->n_segments
                     ? map_segment(&reader->segments[part->segment[i]], call.fds[i], part->bytes[i],
                                   err)
                     : cst_err_set(err, CST_EPROTO, "segment %" PRIu32 " of %" PRIu32,
                                   part->segment[i], reader->n_segments);
        }
        cstc_call_reset(&call);
    }
    return rc;
}

/* Check that all weights are within what is mapped. */
static int check_places(const struct cst_reader *reader, struct cst_err *err)
{
    for (uint32_t i = 0; i < reader->n_tensors; i++) {
        const struct tensor *t = &reader->tensors[i];

        for (uint32_t row = 0; row < t->n_places; row++) {
            const struct place *place = &t->places[row];

            if (place->segment >= reader->n_segments ||
                place->offset > reader->segments[place->segment].bytes ||
                t->info.bytes > reader->segments[place->segment].bytes - place->offset) {
                return cst_err_set(err, CST_EPROTO,
                                   "the weights of tensor '%.100s' are not in the memory of the "
                                   "job",
                                   t->info.name);
            }
        }
    }
    return CST_OK;
}

int cst_reader_open(struct cst_reader **out, const char *path, const char *job, struct cst_err *err)
{
    struct cst_reader *reader;
    int rc;

    if (out == NULL || job == NULL) {
        return cst_err_set(err, CST_EINVAL, "a reader needs the name of a job");
    }
    reader = calloc(1, sizeof *reader);
    if (reader == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a reader");
    }
    rc = cst_connect(&reader->client, path, err);
    rc = rc == CST_OK ? open_job(reader, job, err) : rc;
    rc = rc == CST_OK ? get_tensors(reader, job, err) : rc;
    rc = rc == CST_OK ? map_segments(reader, err) : rc;
    rc = rc == CST_OK ? check_places(reader, err) : rc;
    if (rc != CST_OK) {
        cst_reader_close(reader);
        return rc;
    }
    *out = reader;
    return CST_OK;
}

void cst_reader_close(struct cst_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    cst_disconnect(reader->client); /* It ends all calls. */
    for (uint32_t i = 0; reader->segments != NULL && i < reader->n_segments; i++) {
        if (reader->segments[i].base != NULL) {
            (void)munmap(reader->segments[i].base, reader->segments[i].bytes);
        }
    }
    for (uint32_t i = 0; reader->tensors != NULL && i < reader->n_tensors; i++) {
        free((void *)(uintptr_t)reader->tensors[i].info.name);
        free((void *)(uintptr_t)reader->tensors[i].info.file_name);
        free((void *)(uintptr_t)reader->tensors[i].info.shape);
    }
    free(reader->model_config);
    free(reader->adapter_config);
    free(reader->segments);
    free(reader->tensors);
    free(reader);
}

/* -- tensors ---------------------------------------------------------------------------------- */

uint32_t cst_reader_count(const struct cst_reader *reader)
{
    return reader->n_tensors;
}

int cst_reader_find(const struct cst_reader *reader, const char *name)
{
    for (uint32_t i = 0; i < reader->n_tensors; i++) {
        if (strcmp(reader->tensors[i].info.name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

const struct cst_reader_tensor *cst_reader_tensor(const struct cst_reader *reader, uint32_t tensor)
{
    return &reader->tensors[tensor].info;
}

const char *cst_reader_model_config(const struct cst_reader *reader)
{
    return reader->model_config;
}

const char *cst_reader_adapter_config(const struct cst_reader *reader)
{
    return reader->adapter_config;
}

uint32_t cst_reader_versions(const struct cst_reader *reader)
{
    return reader->versions;
}

const void *cst_reader_weights(const struct cst_reader *reader,
                               const struct cst_reader_version *version, uint32_t tensor)
{
    const struct tensor *t = &reader->tensors[tensor];
    const struct place *place = &t->places[version->row < t->n_places ? version->row : 0];

    return (const char *)reader->segments[place->segment].base + place->offset;
}

/* -- versions --------------------------------------------------------------------------------- */

/* Return @rc. If the connection has ended, say what that means for a reader. */
static int ended(int rc, struct cst_err *err)
{
    return rc == CST_ECONN || rc == CST_EDRAINING
               ? cst_err_prefix(err, "the daemon has ended, and with it all versions that were "
                                     "held: open the reader again")
               : rc;
}

/* Milliseconds until @end; -1: @end is 0, and there is no limit. */
static int left(uint64_t end)
{
    uint64_t now = cst_clock_ns();

    if (end == 0) {
        return -1;
    }
    return now < end ? (int)((end - now) / 1000000 + 1) : 0;
}

/* Ask the daemon to end @call, which is still answered. */
static int cancel(struct cst_reader *reader, const struct cstc_call *call, struct cst_err *err)
{
    Cistern__Cancel msg = CISTERN__CANCEL__INIT;
    struct cstc_call ask = {0};
    int rc;

    msg.request = call->request;
    rc = cstc_call_sync(reader->client, &ask, CISTERN__MSG_TYPE__MSG_CANCEL, &msg.base,
                        CISTERN__MSG_TYPE__MSG_OK, NULL, err);
    cstc_call_reset(&ask);
    return rc;
}

/* Wait until @call is done, at most until @end. */
static int wait_for(struct cst_reader *reader, struct cstc_call *call, uint64_t end,
                    struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && call->state != CSTC_CALL_DONE) {
        rc = cstc_call_wait(reader->client, left(end), err);
    }
    if (rc == CST_ETIMEDOUT && call->state != CSTC_CALL_DONE) {
        rc = cancel(reader, call, err);
        if (rc == CST_OK && cstc_call_result(call, NULL) == CST_ECANCELLED) {
            return cst_err_set(err, CST_ETIMEDOUT, "no such version of the weights yet");
        }
    }
    return call->state == CSTC_CALL_DONE ? cstc_call_result(call, err) : rc;
}

int cst_reader_next(struct cst_reader *reader, const struct cst_reader_wish *wish, int timeout_ms,
                    struct cst_reader_version *version, struct cst_err *err)
{
    const uint64_t end =
        timeout_ms < 0 ? 0 : cst_clock_ns() + (uint64_t)timeout_ms * UINT64_C(1000000);
    Cistern__ReaderNext msg = CISTERN__READER_NEXT__INIT;
    struct cstc_call call = {0};
    int rc;

    msg.has_after = !wish->any;
    msg.after = wish->after;
    msg.keep = wish->keep;
    rc = cstc_call_start(reader->client, &call, CISTERN__MSG_TYPE__MSG_READER_NEXT, &msg.base,
                         CISTERN__MSG_TYPE__MSG_READER_VERSION,
                         &cistern__reader_version__descriptor, err);
    if (rc != CST_OK) {
        return ended(rc, err);
    }
    rc = ended(wait_for(reader, &call, end, err), err);
    if (rc == CST_OK) {
        const Cistern__ReaderVersion *reply = (const Cistern__ReaderVersion *)call.reply;

        *version = (struct cst_reader_version){
            .step = reply->step, .number = reply->version, .row = reply->row};
    }
    cstc_call_reset(&call);
    return rc;
}

/* Make a request of @type about *@version. */
static int ask(struct cst_reader *reader, uint16_t type, const struct cst_reader_version *version,
               struct cst_err *err)
{
    Cistern__ReaderHold msg = CISTERN__READER_HOLD__INIT;
    struct cstc_call call = {0};
    int rc;

    msg.version = version->number;
    rc = cstc_call_sync(reader->client, &call, type, &msg.base, CISTERN__MSG_TYPE__MSG_OK, NULL,
                        err);
    cstc_call_reset(&call);
    return ended(rc, err);
}

int cst_reader_check(struct cst_reader *reader, const struct cst_reader_version *version,
                     struct cst_err *err)
{
    /* What was read before is read before the daemon is asked. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return ask(reader, CISTERN__MSG_TYPE__MSG_READER_CHECK, version, err);
}

int cst_reader_release(struct cst_reader *reader, const struct cst_reader_version *version,
                       struct cst_err *err)
{
    return ask(reader, CISTERN__MSG_TYPE__MSG_READER_RELEASE, version, err);
}
