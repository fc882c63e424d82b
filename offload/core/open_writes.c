/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/open_writes.h"

#include "offload/core/core_state.h"
#include "offload/core/state_rows.h"

#include <inttypes.h>

static void drop(struct cst_writes *writes, uint32_t i)
{
    writes->n_open--;
    for (; i < writes->n_open; i++) {
        writes->open[i] = writes->open[i + 1];
        writes->request[i] = writes->request[i + 1];
    }
}

void cst_open_writes_add(struct cst_core *core, const struct cst_event *event, uint32_t chunk,
                         uint64_t at, uint32_t request)
{
    struct cst_writes *writes = &core->writes;

    if (writes->n_open == CST_CORE_MAX_OPEN_WRITES) {
        return; /* record.n_writes tells that the list is not complete. */
    }
    writes->request[writes->n_open] = request;
    writes->open[writes->n_open++] = (struct cst_open_write){.chunk = chunk,
                                                             .rank = event->rank,
                                                             .row = (uint8_t)event->row,
                                                             .raw = event->raw,
                                                             .exponents = event->exponents,
                                                             .at = at,
                                                             .n_elems = event->n_elems};
}

/* Subtract the range of @done from that of @left. Returns whether nothing is left. Moments count in
 * whole blocks, because a block that was encoded beside torn elements is not what was written. */
static bool subtract(struct cst_open_write *left, const struct cst_open_write *done)
{
    const uint64_t unit = cst_table_is_moment(left->row) ? CST_MX8_BLOCK : 1;
    const uint64_t end = left->at + left->n_elems, done_end = done->at + done->n_elems;
    const uint64_t from = (done->at + unit - 1) / unit * unit, to = done_end / unit * unit;

    if (left->chunk != done->chunk || left->row != done->row ||
        (done->raw && (left->raw != done->raw || left->exponents != done->exponents))) {
        return false;
    }
    if (done->at <= left->at && done_end >= end) {
        return true;
    }
    if (done->at <= left->at && to > left->at) {
        left->at = to;
        left->n_elems = end - to;
    } else if (done_end >= end && from < end) {
        left->n_elems = from - left->at;
    }
    return false;
}

/* The range of @done is written: subtract it from those that an earlier core has left open. */
static void cover(struct cst_writes *writes, const struct cst_open_write *done)
{
    for (uint32_t i = 0; i < writes->n_open;) {
        if (writes->request[i] == CST_NO_REQUEST && subtract(&writes->open[i], done)) {
            drop(writes, i);
            writes->n_left--;
        } else {
            i++;
        }
    }
}

void cst_open_writes_end(struct cst_core *core, uint32_t request, bool done)
{
    struct cst_writes *writes = &core->writes;
    struct cst_open_write ended;
    uint32_t i = 0;

    while (i < writes->n_open && writes->request[i] != request) {
        i++;
    }
    if (i == writes->n_open) {
        return; /* The list was full. Then ranges that were left stay open. */
    }
    ended = writes->open[i];
    drop(writes, i);
    if (done && writes->n_left > 0) {
        cover(writes, &ended);
    }
}

/* The first write that was left open, of @chunk or @rank; CST_NONE: of any. NULL: there is none. */
static const struct cst_open_write *find_left(const struct cst_core *core, uint32_t chunk,
                                              uint32_t rank)
{
    const struct cst_writes *writes = &core->writes;

    for (uint32_t i = 0; writes->n_left > 0 && i < writes->n_open; i++) {
        const struct cst_open_write *write = &writes->open[i];

        if (writes->request[i] == CST_NO_REQUEST && (chunk == CST_NONE || write->chunk == chunk) &&
            (rank == CST_NONE || write->rank == rank)) {
            return write;
        }
    }
    return NULL;
}

int cst_open_writes_check_read(const struct cst_core *core, uint32_t chunk, struct cst_err *err)
{
    const struct cst_open_write *left = find_left(core, chunk, CST_NONE);

    return left == NULL
               ? CST_OK
               : cst_err_set(err, CST_EBUSY,
                             "rank %" PRIu32 " was writing states of chunk %" PRIu32
                             " when the daemon ended: they can be read or saved when it has "
                             "written them again",
                             left->rank, left->chunk);
}

int cst_open_writes_check_sync(const struct cst_core *core, uint32_t rank, struct cst_err *err)
{
    const struct cst_open_write *left = find_left(core, CST_NONE, rank);

    return left == NULL
               ? CST_OK
               : cst_err_set(err, CST_ELOST,
                             "rank %" PRIu32 " was writing states of chunk %" PRIu32
                             " when the daemon ended, and has not written them again: write them, "
                             "or remove the job and load the last checkpoint",
                             rank, left->chunk);
}

/* -- the next core ---------------------------------------------------------------------------- */

void cst_open_writes_record(const struct cst_core *core, struct cst_core_record *out)
{
    out->n_writes = core->writes.n + core->writes.n_left;
    for (uint32_t i = 0; i < core->writes.n_open; i++) {
        out->writes[i] = core->writes.open[i];
    }
}

/* True if element @at of chunk @chunk is the end of a tensor. */
static bool is_end(const struct cst_core *core, uint32_t chunk, uint64_t at)
{
    for (uint32_t t = 0; t < core->model->n_tensors; t++) {
        const struct cst_layout_tensor *tensor = &core->model->tensors[t];

        if (tensor->chunk == chunk && tensor->offset + tensor->n_elems == at) {
            return true;
        }
    }
    return false;
}

static int check(const struct cst_core *core, const struct cst_open_write *write,
                 struct cst_err *err)
{
    const uint64_t end = write->at + write->n_elems;

    if (write->chunk >= core->n_chunks || write->rank >= core->world ||
        write->row >= CST_ROW_COUNT || write->row == CST_ROW_GRAD ||
        write->n_elems > core->layout->chunks[write->chunk].n_elems ||
        write->at > core->layout->chunks[write->chunk].n_elems - write->n_elems) {
        return cst_err_set(err, CST_ELOST,
                           "its record has a write of %" PRIu64 " elements at %" PRIu64
                           " of row %u of chunk %" PRIu32 ", which does not exist",
                           write->n_elems, write->at, (unsigned)write->row, write->chunk);
    }
    /* Of blocks that were written in part, the other elements may be torn, too. */
    if (cst_state_is_coded(core, (enum cst_row)write->row) &&
        (write->at % CST_MX8_BLOCK != 0 ||
         (end % CST_MX8_BLOCK != 0 && !is_end(core, write->chunk, end)))) {
        return cst_err_set(err, CST_ELOST,
                           "a write of moments of chunk %" PRIu32
                           " was under way that began or ended within a block of %d elements",
                           write->chunk, CST_MX8_BLOCK);
    }
    return CST_OK;
}

int cst_open_writes_may_revive(const struct cst_core *core, const struct cst_core_record *record,
                               struct cst_err *err)
{
    uint32_t n = 0;
    int rc = CST_OK;

    while (n < CST_CORE_MAX_OPEN_WRITES && record->writes[n].n_elems > 0) {
        n++;
    }
    if (record->n_writes != n) {
        return cst_err_set(err, CST_ELOST,
                           "%" PRIu32 " writes of its states were under way, and only %" PRIu32
                           " of them can be repeated",
                           record->n_writes, n);
    }
    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        rc = check(core, &record->writes[i], err);
    }
    return rc;
}

void cst_open_writes_revive(struct cst_core *core, const struct cst_core_record *record)
{
    struct cst_writes *writes = &core->writes;

    for (uint32_t i = 0; i < record->n_writes; i++) {
        writes->open[i] = record->writes[i];
        writes->request[i] = CST_NO_REQUEST;
    }
    writes->n_open = writes->n_left = record->n_writes;
    if (record->n_writes > 0) {
        cst_core_log(core, CST_EPEERDIED,
                     "%" PRIu32 " writes of its states were cut off, the first by rank %" PRIu32
                     ": they are awaited again",
                     record->n_writes, record->writes[0].rank);
    }
}
