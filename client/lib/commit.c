/* SPDX-License-Identifier: Apache-2.0 */
/* cst_commit: send the declarations, then get the layout and the pool. */
#include "client/lib/committed.h"
#include "client/lib/job.h"
#include "client/lib/opened.h"
#include "client/lib/sequence_calls.h"
#include "offload/layout/edge.h"
#include "proto/reason.h"

#include <stdlib.h>
#include <string.h>

/* Send the declarations. CST_OK: the daemon has accepted all declarations. The messages are sent
 * one at a time, because a message that is refused must stop the following ones. */
static int declare_some(struct cst_job *job, struct cst_err *err)
{
    struct cstc_commit *commit = &job->commit;
    Cistern__Declare *msg = NULL;
    int rc;

    for (;;) {
        if (job->call.state != CSTC_CALL_IDLE) {
            rc = cstc_job_answer(job, err);
            if (rc != CST_OK) {
                return rc;
            }
            cstc_call_reset(&job->call);
            commit->cursor = commit->asked;
        }
        commit->asked = commit->cursor;
        rc = cstc_declare_message(&job->model, &commit->asked, &msg, err);
        if (rc != CST_OK || msg == NULL) {
            return rc;
        }
        rc = cstc_call_start(job->client, &job->call, CISTERN__MSG_TYPE__MSG_DECLARE, &msg->base,
                             CISTERN__MSG_TYPE__MSG_OK, NULL, err);
        cstc_declare_free_message(msg);
        if (rc != CST_OK) {
            return rc;
        }
    }
}

/* Allocate the arrays whose lengths depend on the plan. An earlier commit that failed may have
 * allocated some of them. */
static int make_room(struct cst_job *job, struct cst_err *err)
{
    size_t n = job->model.n_tensors;

    free(job->tensor_chunk);
    free(job->tensor_offset);
    free(job->traits);
    free(job->slabs);
    job->traits = calloc(job->plan.n_chunks, sizeof *job->traits);
    job->tensor_chunk = calloc(n, sizeof *job->tensor_chunk);
    job->tensor_offset = calloc(n, sizeof *job->tensor_offset);
    job->slabs = calloc(job->n_slabs, sizeof *job->slabs);
    if (job->traits == NULL || job->tensor_chunk == NULL || job->tensor_offset == NULL ||
        job->slabs == NULL) {
        return cst_err_set(err, CST_ENOMEM, "job '%s': no memory for the layout", job->name);
    }
    return cstc_unused_open(job, err);
}

static int take_plan(struct cst_job *job, struct cst_err *err)
{
    const Cistern__Committed *msg = (const Cistern__Committed *)job->call.reply;
    const Cistern__PoolClass *first;
    struct cst_err why;
    int rc;

    if (cstc_committed_check(job, msg, &why) != CST_OK) {
        return cstc_job_distrust(job, &why, err);
    }
    first = msg->classes[0];
    job->plan = (struct cst_plan){
        .n_params = msg->n_params,
        .chunk_elems = first->chunk_elems,
        .n_chunks = msg->n_chunks,
        .n_blocks = first->n_blocks,
        .min_blocks = first->min_blocks,
        .block_bytes = 2 * first->chunk_elems,
        .pool_bytes = msg->pool_bytes,
        .arena_bytes = msg->arena_bytes,
    };
    cstc_committed_take_classes(job, msg);
    job->n_slabs = msg->n_slabs;
    job->device_states = msg->device_states;
    job->initialised = job->initialised || msg->initialised;
    if (msg->has_kept) {
        job->keeps = msg->kept;
        job->client->returns = msg->kept && job->initialised;
    }
    job->steps = msg->step;
    cstc_load_unmap(job); /* An earlier commit that failed may have mapped arenas. */
    rc = cstc_load_init(&job->device.loads, msg->has_n_arenas ? msg->n_arenas : 0, err);
    return rc == CST_OK ? make_room(job, err) : rc;
}

static int commit_declared(struct cst_job *job, struct cst_err *err)
{
    Cistern__Commit msg;
    int rc;

    if (job->call.state == CSTC_CALL_IDLE) {
        cistern__commit__init(&msg);
        msg.n_tensors = job->model.n_tensors;
        msg.n_operators = job->model.n_operators;
        msg.has_copies = true;
        msg.copies = cstc_device_copies(&job->device);
        rc =
            cstc_call_start(job->client, &job->call, CISTERN__MSG_TYPE__MSG_COMMIT, &msg.base,
                            CISTERN__MSG_TYPE__MSG_COMMITTED, &cistern__committed__descriptor, err);
        if (rc != CST_OK) {
            return rc;
        }
    }
    rc = cstc_job_answer(job, err);
    if (rc == CST_OK) {
        rc = take_plan(job, err);
        cstc_call_reset(&job->call);
    }
    return rc;
}

/* Record that tensor @number begins at element @offset of @chunk, which has the size class @class.
 * The chunk gets its traits from each of its tensors, because all its tensors have the same
 * pattern. */
static int take_place(struct cst_job *job, uint32_t number, uint32_t chunk, uint32_t class,
                      uint64_t offset, struct cst_err *why)
{
    const struct cst_layout_tensor *tensor = &job->model.tensors[number];
    uint64_t bf16_elems = class < job->plan.n_classes ? job->plan.classes[class].chunk_elems : 0;
    uint64_t capacity = 2 * bf16_elems / cst_dtype_bytes(tensor->dtype);

    /* 64 elements of bf16 are 128 bytes, the alignment of struct cst_io. */
    if (chunk >= job->plan.n_chunks || offset % 64 != 0 || tensor->n_elems > capacity ||
        offset > capacity - tensor->n_elems) {
        return cst_err_set(
            why, CST_EPROTO, "tensor '%s' at chunk %u, element %llu of %llu (size class %u)",
            tensor->name, chunk, (unsigned long long)offset, (unsigned long long)capacity, class);
    }
    job->tensor_chunk[number] = chunk;
    job->tensor_offset[number] = offset;
    job->traits[chunk] = (struct cst_lease_trait){
        .size_class = (uint8_t) class, .trains = cst_pattern(tensor->pattern)->has_states};
    return CST_OK;
}

static int take_places(struct cst_job *job, struct cst_err *why)
{
    const Cistern__LayoutPart *part = (const Cistern__LayoutPart *)job->call.reply;
    uint32_t n = job->model.n_tensors, first = job->commit.n_placed;
    int rc = CST_OK;

    if (part->first != first || part->n_chunk != part->n_offset || part->n_chunk == 0 ||
        part->n_chunk > n - first || part->n_size_class != part->n_chunk) {
        return cst_err_set(why, CST_EPROTO, "a layout page of %zu tensors from %u, wanted from %u",
                           part->n_chunk, part->first, first);
    }
    for (uint32_t i = 0; i < part->n_chunk && rc == CST_OK; i++) {
        rc = take_place(job, first + i, part->chunk[i], part->size_class[i], part->offset[i], why);
    }
    job->commit.n_placed += rc == CST_OK ? (uint32_t)part->n_chunk : 0;
    return rc;
}

static int get_layout(struct cst_job *job, struct cst_err *err)
{
    struct cst_err why;
    int rc = CST_OK;

    while (rc == CST_OK && job->commit.n_placed < job->model.n_tensors) {
        if (job->call.state == CSTC_CALL_IDLE) {
            Cistern__LayoutGet msg = CISTERN__LAYOUT_GET__INIT;

            msg.first = job->commit.n_placed;
            rc = cstc_call_start(job->client, &job->call, CISTERN__MSG_TYPE__MSG_LAYOUT, &msg.base,
                                 CISTERN__MSG_TYPE__MSG_LAYOUT_PART,
                                 &cistern__layout_part__descriptor, err);
        }
        if (rc == CST_OK) {
            rc = cstc_job_answer(job, err);
        }
        if (rc == CST_OK) {
            rc = take_places(job, &why);
            cstc_call_reset(&job->call);
            if (rc != CST_OK) {
                rc = cstc_job_distrust(job, &why, err);
            }
        }
    }
    return rc;
}

/* Map the slabs of a reply. CST_EPROTO: a slab is not as the daemon says; CST_ENOMEM: the kernel
 * cannot map it; or a status of the device. */
static int take_slabs(struct cst_job *job, struct cst_err *why)
{
    const Cistern__PoolPart *part = (const Cistern__PoolPart *)job->call.reply;
    uint32_t first = job->commit.n_mapped;

    if (part->first != first || part->n_bytes == 0 || part->n_bytes > job->n_slabs - first ||
        part->n_bytes != job->call.n_fds) {
        return cst_err_set(why, CST_EPROTO,
                           "a pool page of %zu slabs from %u with %u fds, wanted from %u of %u",
                           part->n_bytes, part->first, job->call.n_fds, first, job->n_slabs);
    }
    if ((part->has_device && part->device) != (job->device.calls != NULL)) {
        return cst_err_set(why, CST_EPROTO, "slabs in memory of %s for a job on %s",
                           job->device.calls != NULL ? "the host" : "a device", job->device_name);
    }
    for (uint32_t i = 0; i < part->n_bytes; i++) {
        uint32_t slab = first + i;
        int fd = job->call.fds[i];
        int rc = job->device.calls != NULL
                     ? cstc_device_map(job, slab, fd, part->bytes[i], why)
                     : cstc_segment_map(&job->slabs[slab], fd, part->bytes[i], why);

        if (rc != CST_OK) {
            (void)cst_err_prefix(why, "slab %u of the pool", slab);
            return rc;
        }
        job->commit.n_mapped++;
    }
    return CST_OK;
}

static int ask_memory(struct cst_job *job, uint16_t type, const ProtobufCMessage *msg,
                      uint16_t reply_type, const ProtobufCMessageDescriptor *reply,
                      struct cst_err *err)
{
    job->call.max_fds = CST_FRAME_MAX_FDS;
    return cstc_call_start(job->client, &job->call, type, msg, reply_type, reply, err);
}

/* Get the reply with descriptors, and let @take map them. */
static int take_memory(struct cst_job *job, int (*take)(struct cst_job *job, struct cst_err *why),
                       struct cst_err *err)
{
    struct cst_err why;
    int rc = cstc_job_answer(job, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = take(job, &why);
    cstc_call_reset(&job->call);
    if (rc == CST_EPROTO) {
        rc = cstc_job_distrust(job, &why, err);
    } else if (rc != CST_OK) {
        rc = cst_err_give_reason(err, why.reason, cst_err_set(err, rc, "%s", why.text));
    }
    return rc;
}

static int ask_slabs(struct cst_job *job, struct cst_err *err)
{
    Cistern__PoolGet msg = CISTERN__POOL_GET__INIT;

    msg.first = job->commit.n_mapped;
    return ask_memory(job, CISTERN__MSG_TYPE__MSG_POOL, &msg.base, CISTERN__MSG_TYPE__MSG_POOL_PART,
                      &cistern__pool_part__descriptor, err);
}

static int get_pool(struct cst_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && job->commit.n_mapped < job->n_slabs) {
        if (job->call.state == CSTC_CALL_IDLE) {
            rc = ask_slabs(job, err);
        }
        rc = rc == CST_OK ? take_memory(job, take_slabs, err) : rc;
    }
    /* The next requests of this call bring no fds. */
    job->call.max_fds = job->call.state == CSTC_CALL_IDLE ? 0 : job->call.max_fds;
    return rc;
}

static int take_arenas(struct cst_job *job, struct cst_err *why)
{
    const Cistern__ArenaPart *part = (const Cistern__ArenaPart *)job->call.reply;
    const struct cstc_loads *loads = &job->device.loads;
    uint32_t first = loads->n_mapped;

    if (part->first != first || part->n_bytes == 0 || part->n_bytes > loads->n_arenas - first ||
        part->n_bytes != part->n_segment || part->n_bytes != job->call.n_fds) {
        return cst_err_set(why, CST_EPROTO,
                           "a page of %zu arenas from %u with %u fds, wanted from %u of %u",
                           part->n_bytes, part->first, job->call.n_fds, first, loads->n_arenas);
    }
    for (uint32_t i = 0; i < part->n_bytes; i++) {
        int rc = cstc_load_map(job, part->segment[i], job->call.fds[i], part->bytes[i], why);

        if (rc != CST_OK) {
            return cst_err_prefix(why, "arena %u", first + i);
        }
    }
    return CST_OK;
}

static int ask_arenas(struct cst_job *job, struct cst_err *err)
{
    Cistern__ArenaGet msg = CISTERN__ARENA_GET__INIT;

    msg.first = job->device.loads.n_mapped;
    return ask_memory(job, CISTERN__MSG_TYPE__MSG_ARENA, &msg.base,
                      CISTERN__MSG_TYPE__MSG_ARENA_PART, &cistern__arena_part__descriptor, err);
}

static int get_arenas(struct cst_job *job, struct cst_err *err)
{
    const struct cstc_loads *loads = &job->device.loads;
    int rc = CST_OK;

    while (rc == CST_OK && loads->n_mapped < loads->n_arenas) {
        if (job->call.state == CSTC_CALL_IDLE) {
            rc = ask_arenas(job, err);
        }
        rc = rc == CST_OK ? take_memory(job, take_arenas, err) : rc;
    }
    job->call.max_fds = job->call.state == CSTC_CALL_IDLE ? 0 : job->call.max_fds;
    return rc;
}

/* Return the number of descriptors that come with @part; SIZE_MAX: its arrays do not fit. */
static size_t count_edge_fds(const Cistern__EdgePart *part)
{
    size_t n = part->n_edge;

    if (part->n_slots_bytes != part->n_slots_device ||
        (part->n_slots_bytes != 0 && part->n_slots_bytes != n)) {
        return SIZE_MAX;
    }
    for (size_t i = 0; i < part->n_slots_bytes; i++) {
        n += part->slots_bytes[i] > 0;
    }
    return n;
}

/* Map the edges of a reply, up to one whose slots cannot be mapped in device memory. */
static int take_edges(struct cst_job *job, struct cst_err *why)
{
    const Cistern__EdgePart *part = (const Cistern__EdgePart *)job->call.reply;
    uint32_t left = cstc_edge_count(job) - job->commit.n_edges, n_fds = 0;
    bool refused = false;
    int rc = CST_OK;

    if (part->first != job->commit.n_edges || part->n_edge == 0 || part->n_edge > left ||
        part->n_edge != part->n_bytes || count_edge_fds(part) != job->call.n_fds) {
        return cst_err_set(why, CST_EPROTO, "a page of %zu edges from %u with %u fds, %u are left",
                           part->n_edge, part->first, job->call.n_fds, left);
    }
    if (part->first == 0) {
        job->commit.slots_replaced = part->replaced;
    }
    for (uint32_t i = 0; i < part->n_edge && rc == CST_OK; i++) {
        struct cstc_edge_fds fds = {
            .fd = job->call.fds[n_fds++], .bytes = part->bytes[i], .slots_fd = -1};

        if (part->n_slots_bytes > 0 && part->slots_bytes[i] > 0) {
            fds.slots_fd = job->call.fds[n_fds++];
            fds.slots_bytes = part->slots_bytes[i];
            fds.slots_device = part->slots_device[i];
        }
        rc = cstc_edge_map(job, part->edge[i], &fds, &refused, why);
        job->commit.n_edges += rc == CST_OK;
        if (refused) {
            job->commit.refused = part->edge[i];
            job->commit.refusal = *why;
        }
    }
    return refused ? CST_OK : rc;
}

static int ask_edges(struct cst_job *job, struct cst_err *err)
{
    Cistern__EdgeGet msg = CISTERN__EDGE_GET__INIT;

    msg.first = job->commit.n_edges;
    return ask_memory(job, CISTERN__MSG_TYPE__MSG_EDGE, &msg.base, CISTERN__MSG_TYPE__MSG_EDGE_PART,
                      &cistern__edge_part__descriptor, err);
}

/* Get the next edges. */
static int get_edges(struct cst_job *job, struct cst_err *err)
{
    int rc = job->call.state == CSTC_CALL_IDLE ? ask_edges(job, err) : CST_OK;

    return rc == CST_OK ? take_memory(job, take_edges, err) : rc;
}

static int ask_host_slots(struct cst_job *job, struct cst_err *err)
{
    Cistern__EdgeRefuse msg = CISTERN__EDGE_REFUSE__INIT;

    msg.edge = job->commit.refused;
    msg.reason = job->commit.refusal.text;
    job->call.max_fds = 0;
    return cstc_call_start(job->client, &job->call, CISTERN__MSG_TYPE__MSG_EDGE_REFUSE, &msg.base,
                           CISTERN__MSG_TYPE__MSG_OK, NULL, err);
}

/* Have the slots that this rank cannot map made again in host memory. Then the edge can be got. */
static int refuse_slots(struct cst_job *job, struct cst_err *err)
{
    struct cst_err *refusal = &job->commit.refusal, why = {0};
    int rc = job->call.state == CSTC_CALL_IDLE ? ask_host_slots(job, &why) : CST_OK;

    rc = rc == CST_OK ? cstc_job_answer(job, &why) : rc;
    if (rc == CST_EAGAIN) {
        return rc;
    }
    if (rc == CST_OK) {
        cstc_call_reset(&job->call);
        job->commit.has_refused = true;
    } else {
        (void)cst_err_set(err, rc,
                          "edge '%s': its slots in device memory (on_device): %.280s; there are no "
                          "slots in host memory instead: %.200s",
                          job->model.edges[job->commit.refused].name, refusal->text, why.text);
        (void)cst_err_give_reason(err, why.reason, rc);
    }
    refusal->status = CST_OK;
    return rc;
}

int cstc_job_advance_edges(struct cst_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && job->commit.n_edges < cstc_edge_count(job)) {
        rc = job->commit.refusal.status != CST_OK ? refuse_slots(job, err) : get_edges(job, err);
    }
    if (rc == CST_OK) {
        job->edges_mapped = job->edges_wanted = job->commit.slots_replaced;
    }
    job->call.max_fds = job->call.state == CSTC_CALL_IDLE ? 0 : job->call.max_fds;
    return rc;
}

static int make_leases(struct cst_job *job, struct cst_err *err)
{
    uint32_t n = job->model.n_operators;
    struct cst_lease_model model = {
        .tensor_chunk = job->tensor_chunk,
        .n_operators = n,
        .n_tensors = job->model.n_tensors,
        .n_chunks = job->plan.n_chunks,
        .traits = job->traits,
    };

    free(job->operators);
    job->operators = calloc((size_t)n + 1, sizeof *job->operators);
    if (job->operators == NULL) {
        return cst_err_set(err, CST_ENOMEM, "job '%s': no memory for %u operators", job->name, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        job->operators[i] = (struct cst_lease_operator){
            .name = job->model.operators[i].name,
            .tensors = job->model.operators[i].tensors,
            .n_tensors = job->model.operators[i].n_tensors,
            .stage = job->model.operators[i].stage,
            .runs = cst_model_runs(&job->model, &job->model.operators[i], job->rank)};
    }
    for (uint32_t i = 0; i < job->plan.n_classes; i++) {
        model.blocks[i] = job->plan.classes[i].n_blocks;
    }
    model.operators = job->operators;
    return cst_sequence_init(&job->sequence, &model, job->micro_batches, job->device.calls != NULL,
                             &cstc_sequence_calls, job, err);
}

/* The ranks disagree, and the daemon has forgotten what this rank declared: begin again. */
static void declare_anew(struct cstc_commit *commit)
{
    commit->phase = CSTC_COMMIT_DECLARE;
    memset(&commit->cursor, 0, sizeof commit->cursor);
    memset(&commit->asked, 0, sizeof commit->asked);
}

int cstc_job_advance_commit(struct cst_job *job, struct cst_err *err)
{
    int (*const phases[])(struct cst_job *, struct cst_err *) = {
        [CSTC_COMMIT_DECLARE] = declare_some,
        [CSTC_COMMIT_COMMIT] = commit_declared,
        [CSTC_COMMIT_LAYOUT] = get_layout,
        [CSTC_COMMIT_POOL] = get_pool,
        [CSTC_COMMIT_EDGES] = cstc_job_advance_edges,
        [CSTC_COMMIT_ARENAS] = get_arenas,
        [CSTC_COMMIT_LEASES] = make_leases,
    };
    int rc = CST_OK;

    while (rc == CST_OK && job->commit.phase != CSTC_COMMIT_DONE) {
        rc = phases[job->commit.phase](job, err);
        if (rc == CST_OK) {
            job->commit.phase++;
        }
    }
    if (rc == CST_EMISMATCH) {
        declare_anew(&job->commit);
    }
    return rc;
}

void cstc_job_uncommit(struct cst_job *job)
{
    cstc_edge_close(job);
    if (job->device.calls != NULL) {
        cstc_device_unmap(job);
    }
    cstc_load_unmap(job);
    for (uint32_t i = 0; job->slabs != NULL && i < job->n_slabs; i++) {
        cstc_segment_unmap(&job->slabs[i]);
    }
    cst_sequence_close(&job->sequence);
    memset(&job->sequence, 0, sizeof job->sequence);
    memset(&job->commit, 0, sizeof job->commit);
}

/* Commit with the daemon, or with its next process if it has ended after it had committed. */
static int commit_once(struct cst_job *job, bool block, struct cst_err *err)
{
    struct cstc_pending want = {.kind = CSTC_PENDING_COMMIT};
    int rc = cstc_job_check(job, err);

    if (job->commit.phase != CSTC_COMMIT_DONE &&
        (job->reopening || (rc == CST_EPEERDIED && job->client->returns))) {
        return cstc_job_reopen(job, block, err);
    }
    if (rc == CST_OK && job->commit.phase == CSTC_COMMIT_DONE) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s' is committed", job->name);
    } else if (rc == CST_OK && (job->model.n_tensors == 0 || job->model.n_operators == 0)) {
        rc = cst_err_set(err, CST_EINVAL, "job '%s': %u tensors and %u operators declared",
                         job->name, job->model.n_tensors, job->model.n_operators);
    } else if (rc == CST_OK) {
        rc = cst_model_check_stage(&job->model, err);
    }
    if (rc == CST_OK) {
        rc = cstc_device_check(job, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_pend(job, &want, err);
    }
    if (rc == CST_OK) {
        rc = cstc_job_drive(job, cstc_job_advance_commit, block, err);
    }
    return rc;
}

static int commit_job(struct cst_job *job, bool block, struct cst_plan *plan, struct cst_err *err)
{
    int rc;

    do {
        rc = commit_once(job, block, err);
    } while (rc == CST_EPEERDIED && job->client->returns &&
             job->client->dead.status == CST_EPEERDIED && job->commit.phase != CSTC_COMMIT_DONE);
    if (rc == CST_OK && plan != NULL) {
        *plan = job->plan;
    }
    if (rc == CST_OK) {
        cstc_opened_tell(CSTC_OPENED_COMMITTED, job->rank);
    }
    return rc;
}

int cst_commit(struct cst_job *job, struct cst_plan *plan, struct cst_err *err)
{
    return commit_job(job, true, plan, err);
}

int cst_try_commit(struct cst_job *job, struct cst_plan *plan, struct cst_err *err)
{
    return commit_job(job, false, plan, err);
}
