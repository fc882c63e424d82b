/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/layout_work.h"

#include "daemon/job/base_job.h"
#include "daemon/base/daemon_state.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/job/pool_share.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/job/searches.h"
#include "daemon/job/span.h"
#include "daemon/engine/engines.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct cstd_layout_work {
    uv_work_t work;
    struct cst_layout_config config;
    cstd_layout_work_cb done;
    struct cst_err err; /* The result. */
};

static int configure(struct cstd_job *job, struct cst_layout_config *out, struct cst_err *err)
{
    struct cst_layout_config config = {.chunk_elems = job->spec.planning.chunk_elems,
                                       .pool_bytes = cstd_pool_share_smallest(job),
                                       .n_nodes = job->daemon->engines->n_nodes,
                                       .world = job->world,
                                       .grad_bytes = cstd_job_grad_bytes(job),
                                       .states = cst_layout_job_states(&job->spec),
                                       .landings = cstd_rank_devices_landings(job),
                                       .max_classes = CST_LAYOUT_MAX_CLASSES};
    int rc = cstd_base_job_check(job, err);

    for (uint32_t r = 0; r < job->world; r++) {
        config.near_node[r] = job->workers[r].near_node =
            cstd_rank_devices_near_node(&job->workers[r]);
    }
    if (rc == CST_OK) {
        rc = cstd_device_reservation_devices(job, &config, err);
    }
    if (job->plan.valid) {
        config.chunk_elems = job->plan.choice.layout.chunk_elems;
        memcpy(config.class_elems, job->plan.choice.layout.class_elems, sizeof config.class_elems);
    }
    rc = rc == CST_OK ? cstd_span_lay_out(job, &config, err) : rc;
    if (job->keeps_chunks) {
        const struct cst_layout *old = &job->predecessor->layout;

        config.chunk_elems = old->capacity;
        for (uint32_t i = 1; i < old->n_classes; i++) {
            config.class_elems[i - 1] = old->classes[i].capacity;
        }
    }
    if (rc == CST_OK && job->base != NULL) {
        config.base_model = &job->base->model;
        config.base = &job->base->layout;
    }
    *out = config;
    return rc;
}

static void on_thread(uv_work_t *work)
{
    struct cstd_job *job = work->data;

    (void)setpriority(PRIO_PROCESS, 0, CSTD_SEARCHES_NICE); /* Affects only this thread. */
    if (cst_layout_build(&job->layout, &job->model, &job->layout_work->config,
                         &job->layout_work->err) == CST_OK) {
        cstd_device_reservation_choose_drives(job);
    }
}

static void on_thread_done(uv_work_t *work, int status)
{
    struct cstd_job *job = work->data;
    struct cstd_layout_work *layout = job->layout_work;

    (void)status; /* libuv's cancellation is not used. */
    job->layout_work = NULL;
    layout->done(job, &layout->err);
    free(layout);
}

int cstd_layout_work_start(struct cstd_job *job, cstd_layout_work_cb done, struct cst_err *err)
{
    struct cstd_layout_work *layout = calloc(1, sizeof *layout);
    int rc;

    if (layout == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a layout");
    }
    layout->done = done;
    layout->work.data = job;
    job->layout_work = layout;
    rc = configure(job, &layout->config, err);
    if (rc == CST_OK &&
        uv_queue_work(&job->daemon->loop, &layout->work, on_thread, on_thread_done) != 0) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for a layout");
    }
    if (rc != CST_OK) {
        job->layout_work = NULL;
        free(layout);
    }
    return rc;
}
