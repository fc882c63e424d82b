/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/committed.h"

#include "client/lib/job.h"

/* Limit of the slabs and arenas in a plan, so that a faulty daemon cannot cause huge
 * allocations. */
#define MAX_SLABS (1u << 20)

static uint32_t slabs_of(const Cistern__PoolClass *class)
{
    return class->n_blocks / class->blocks_per_slab +
           (class->n_blocks % class->blocks_per_slab > 0 ? 1 : 0);
}

/* Check the size classes. Their slabs must follow each other; a class that this rank never uses has
 * no slabs. */
static int check_classes(const Cistern__Committed *msg, struct cst_err *why)
{
    uint64_t n_slabs = 0, least = 0;

    if (msg->n_classes == 0 || msg->n_classes > CST_PLAN_MAX_CLASSES) {
        return cst_err_set(why, CST_EPROTO, "a plan of %zu size classes", msg->n_classes);
    }
    for (uint32_t i = 0; i < msg->n_classes; i++) {
        const Cistern__PoolClass *class = msg->classes[i];

        if (class->chunk_elems <= least || class->chunk_elems > UINT64_MAX / 2 ||
            class->n_blocks < class->min_blocks || class->blocks_per_slab == 0 ||
            class->first_slab != n_slabs) {
            return cst_err_set(why, CST_EPROTO,
                               "size class %u: chunks of %llu elements, %u blocks (at least %u) in "
                               "slabs of %u from %u on",
                               i, (unsigned long long)class->chunk_elems, class->n_blocks,
                               class->min_blocks, class->blocks_per_slab, class->first_slab);
        }
        least = class->chunk_elems;
        n_slabs += slabs_of(class);
    }
    return n_slabs == msg->n_slabs
               ? CST_OK
               : cst_err_set(why, CST_EPROTO, "a plan of %u slabs for blocks in %llu", msg->n_slabs,
                             (unsigned long long)n_slabs);
}

int cstc_committed_check(const struct cst_job *job, const Cistern__Committed *msg,
                         struct cst_err *why)
{
    if (check_classes(msg, why) != CST_OK) {
        return why->status;
    }
    if (msg->n_chunks == 0 || msg->n_chunks > job->model.n_tensors || msg->n_slabs == 0 ||
        msg->n_slabs > MAX_SLABS) {
        return cst_err_set(why, CST_EPROTO, "a plan of %u chunks for %u tensors, %u slabs",
                           msg->n_chunks, job->model.n_tensors, msg->n_slabs);
    }
    if (msg->has_n_arenas && msg->n_arenas > 0 &&
        (!cstc_device_copies(&job->device) || msg->n_arenas > MAX_SLABS)) {
        return cst_err_set(why, CST_EPROTO, "copies out of %u arenas are left to a worker on %s",
                           msg->n_arenas, job->device_name);
    }
    return CST_OK;
}

void cstc_committed_take_classes(struct cst_job *job, const Cistern__Committed *msg)
{
    job->plan.n_classes = (uint32_t)msg->n_classes;
    for (uint32_t i = 0; i < job->plan.n_classes; i++) {
        const Cistern__PoolClass *class = msg->classes[i];

        job->plan.classes[i] = (struct cst_plan_class){.chunk_elems = class->chunk_elems,
                                                       .n_blocks = class->n_blocks,
                                                       .min_blocks = class->min_blocks};
        job->class_slabs[i] = (struct cstc_slabs){.first = class->first_slab, .n = slabs_of(class)};
    }
}
