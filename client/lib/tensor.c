/* SPDX-License-Identifier: Apache-2.0 */
/* cst_tensor_read, cst_tensor_write, cst_set_steps and cst_missed_steps. */
#include "client/lib/job.h"
#include "client/lib/state_io.h"

#include "proto/table.h"

#include <string.h>

static size_t elem_bytes(const struct cst_job *job, int tensor, enum cst_state state)
{
    return state == CST_STATE_WEIGHT || state == CST_STATE_GRAD
               ? cst_dtype_bytes(job->model.tensors[tensor].dtype)
               : 4;
}

static int check_range(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                       uint64_t n_elems, const void *data, struct cst_err *err)
{
    const struct cst_layout_tensor *t;

    if (tensor < 0 || (uint32_t)tensor >= job->model.n_tensors) {
        return cst_err_set(err, CST_EINVAL, "there is no tensor %d, %u are declared", tensor,
                           job->model.n_tensors);
    }
    t = &job->model.tensors[tensor];
    if ((int)state < CST_STATE_WEIGHT || (int)state >= CST_ROW_COUNT) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': state %d", t->name, (int)state);
    }
    if (first > t->n_elems || n_elems > t->n_elems - first) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': elements %llu and %llu more, it has %llu",
                           t->name, (unsigned long long)first, (unsigned long long)n_elems,
                           (unsigned long long)t->n_elems);
    }
    if (data == NULL && n_elems > 0) {
        return cst_err_set(err, CST_EINVAL, "tensor '%s': no data", t->name);
    }
    return CST_OK;
}

/* Where a stream of pieces of one row is. */
struct cursor {
    uint64_t next; /* First element of the next piece. */
    uint64_t end;  /* Element after the last one. */
    uint64_t most; /* Most elements of a piece. */
    size_t elem_bytes;
    struct cstc_state_piece piece; /* What all pieces have in common. */
    char *at; /* Reads: where the data of the next piece goes. Writes: where it comes from. */
};

/* If possible, a piece ends at the end of a block of 8-bit moments, because a block that is written
 * in two pieces is rounded twice. */
static bool next_piece(void *arg, struct cstc_state_piece *out)
{
    struct cursor *cursor = arg;
    uint64_t n = cursor->end - cursor->next;

    if (n > cursor->most) {
        uint64_t beyond = (cursor->next + cursor->most) % CST_MX8_BLOCK;

        n = cursor->most > beyond ? cursor->most - beyond : cursor->most;
    }
    *out = cursor->piece;
    out->first = cursor->next;
    out->n_elems = n;
    out->bytes = n * cursor->elem_bytes;
    cursor->next += n;
    return n > 0;
}

static int take_data(void *arg, const struct cstc_state_piece *piece, void *data,
                     struct cst_err *err)
{
    struct cursor *cursor = arg;

    (void)err;
    memcpy(cursor->at, data, piece->bytes);
    cursor->at += piece->bytes;
    return CST_OK;
}

static int give_data(void *arg, const struct cstc_state_piece *piece, void *data,
                     struct cst_err *err)
{
    struct cursor *cursor = arg;

    (void)err;
    memcpy(data, cursor->at, piece->bytes);
    cursor->at += piece->bytes;
    return CST_OK;
}

static int prepare(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                   uint64_t n_elems, const void *data, struct cursor *out, struct cst_err *err)
{
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK) {
        rc = check_range(job, tensor, state, first, n_elems, data, err);
    }
    if (rc == CST_OK) {
        rc = cstc_state_open(job->client, err);
    }
    if (rc == CST_OK) {
        size_t bytes = elem_bytes(job, tensor, state);

        *out = (struct cursor){.next = first,
                               .end = first + n_elems,
                               .most = cstc_state_most(job->client) / bytes,
                               .elem_bytes = bytes,
                               /* Both enums have the same numbers. */
                               .piece = {.tensor = (uint32_t)tensor, .row = (uint32_t)state},
                               .at = (char *)(uintptr_t)data};
    }
    return rc;
}

int cst_tensor_read(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                    uint64_t n_elems, void *data, struct cst_err *err)
{
    struct cursor cursor;
    struct cstc_state_stream stream = {.next = next_piece, .data = take_data, .arg = &cursor};
    int rc;

    do {
        rc = prepare(job, tensor, state, first, n_elems, data, &cursor, err);
        rc = rc == CST_OK ? cstc_states_read(job->client, &stream, err) : rc;
    } while (cstc_job_goes_on(job, &rc, err));
    return rc;
}

int cst_tensor_write(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                     uint64_t n_elems, const void *data, struct cst_err *err)
{
    struct cursor cursor;
    struct cstc_state_stream stream = {.next = next_piece, .data = give_data, .arg = &cursor};
    int rc;

    do {
        rc = prepare(job, tensor, state, first, n_elems, data, &cursor, err);
        rc = rc == CST_OK ? cstc_states_write(job->client, &stream, err) : rc;
    } while (cstc_job_goes_on(job, &rc, err));
    return rc;
}

/* -- steps ------------------------------------------------------------------------------------ */

static int check_steps(const struct cst_job *job, uint64_t steps, uint64_t n_skipped,
                       const uint64_t *missed, struct cst_err *err)
{
    int rc = cstc_job_check_committed(job, err);

    if (rc == CST_OK && n_skipped > steps) {
        rc = cst_err_set(err, CST_EINVAL, "%llu of %llu steps were skipped",
                         (unsigned long long)n_skipped, (unsigned long long)steps);
    }
    for (uint32_t t = 0; rc == CST_OK && missed != NULL && t < job->model.n_tensors; t++) {
        const uint64_t most = job->unused.skips ? steps - n_skipped : 0;

        if (missed[t] > most) {
            rc = cst_err_set(err, CST_EINVAL,
                             "tensor '%s' was skipped in %llu steps, the most is %llu",
                             job->model.tensors[t].name, (unsigned long long)missed[t],
                             (unsigned long long)most);
        }
    }
    return rc;
}

static int restore(struct cst_job *job, const Cistern__Restore *msg, struct cst_err *err)
{
    struct cstc_call call = {0};
    int rc = cstc_call_sync(job->client, &call, CISTERN__MSG_TYPE__MSG_RESTORE, &msg->base,
                            CISTERN__MSG_TYPE__MSG_OK, NULL, err);

    if (rc == CST_OK) {
        cstc_call_reset(&call);
    }
    return rc;
}

static int set_steps(struct cst_job *job, uint64_t steps, uint64_t n_skipped,
                     const uint64_t *missed, struct cst_err *err)
{
    const size_t n = missed != NULL ? job->model.n_tensors : 0;
    bool tells = job->unused.skips;
    size_t told = 0;
    int rc = check_steps(job, steps, n_skipped, missed, err);

    while (rc == CST_OK && tells) {
        Cistern__Restore msg = CISTERN__RESTORE__INIT;

        cstc_unused_fill_missed(&msg, missed, n, &told);
        rc = restore(job, &msg, err);
        tells = told < n;
    }
    if (rc == CST_OK) {
        Cistern__Restore msg = CISTERN__RESTORE__INIT;

        msg.step = steps;
        msg.adam_step = steps - n_skipped;
        msg.n_skipped = n_skipped;
        rc = restore(job, &msg, err);
    }
    if (rc == CST_OK) {
        job->steps = steps;
        job->initialised = true;
    }
    return rc;
}

int cst_set_steps(struct cst_job *job, uint64_t steps, uint64_t n_skipped, const uint64_t *missed,
                  struct cst_err *err)
{
    int rc;

    do {
        rc = set_steps(job, steps, n_skipped, missed, err);
    } while (cstc_job_goes_on(job, &rc, err));
    return rc;
}

/* Get what the next reply has of @missed from tensor *t on, and let *t be the tensor after it. */
static int next_missed(struct cst_job *job, uint32_t *t, uint64_t *missed, struct cst_err *err)
{
    Cistern__LayoutGet msg = CISTERN__LAYOUT_GET__INIT;
    const Cistern__LayoutPart *part;
    struct cstc_call call = {0};
    struct cst_err why;
    int rc;

    msg.first = *t;
    msg.has_missed = msg.missed = true;
    rc = cstc_call_sync(job->client, &call, CISTERN__MSG_TYPE__MSG_LAYOUT, &msg.base,
                        CISTERN__MSG_TYPE__MSG_LAYOUT_PART, &cistern__layout_part__descriptor, err);
    if (rc != CST_OK) {
        return rc;
    }
    part = (const Cistern__LayoutPart *)call.reply;
    if (part->n_missed == 0 || part->n_missed > job->model.n_tensors - *t) {
        (void)cst_err_set(&why, CST_EPROTO, "steps missed by %zu tensors from %u on",
                          part->n_missed, *t);
        rc = cstc_client_distrust(job->client, &why, err);
    } else {
        memcpy(missed + *t, part->missed, part->n_missed * sizeof *missed);
        *t += (uint32_t)part->n_missed;
    }
    cstc_call_reset(&call);
    return rc;
}

int cst_missed_steps(struct cst_job *job, uint64_t *missed, struct cst_err *err)
{
    uint32_t t = 0;
    int rc;

    do {
        rc = cstc_job_check_committed(job, err);
        while (rc == CST_OK && t < job->model.n_tensors) {
            rc = next_missed(job, &t, missed, err);
        }
    } while (cstc_job_goes_on(job, &rc, err));
    return rc;
}
