/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/rank_devices.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/device_reservation.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/gpus.h"
#include "daemon/job/job.h"
#include "daemon/job/worker.h"

const char *cstd_rank_devices_name(const struct cstd_worker *worker)
{
    return worker->gpu != NULL ? worker->gpu->uuid : "host";
}

void cstd_rank_devices_use(struct cstd_worker *worker, struct cstd_gpu **of, struct cstd_gpu *gpu)
{
    struct cstd_engines *engines = worker->job->daemon->engines;
    struct cstd_gpu *was = *of;

    *of = gpu;
    if (gpu != NULL && gpu != was) {
        cstd_engine_use(&engines->v[gpu->engine]);
    }
    if (was != NULL && gpu != was) {
        cstd_engine_unuse(&engines->v[was->engine]);
    }
}

void cstd_rank_devices_set(struct cstd_worker *worker, struct cstd_gpu *gpu)
{
    struct cstd_gpu *other =
        cstd_device_reservation_accelerator(worker->job->daemon, gpu, worker->rank);

    cstd_rank_devices_use(worker, &worker->gpu, gpu);
    cstd_rank_devices_use(worker, &worker->accelerator,
                          worker->device_update_asked > 0 || worker->states_asked > 0 ? other
                                                                                      : NULL);
}

uint32_t cstd_rank_devices_near_node(const struct cstd_worker *worker)
{
    const struct cstd_engines *engines = worker->job->daemon->engines;
    const struct cstd_gpu *gpu = worker->gpu != NULL ? worker->gpu : worker->accelerator;

    for (uint32_t i = 0; i < engines->n_nodes && gpu != NULL; i++) {
        if (gpu->os_node >= 0 && engines->v[i].os_node == (unsigned)gpu->os_node) {
            return i + 1;
        }
    }
    return 0;
}

enum cst_layout_landings cstd_rank_devices_landings(const struct cstd_job *job)
{
    const struct cstd_gpus *gpus = job->daemon->gpus;
    uint32_t engines = 0, unreachable = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_gpu *gpu = job->workers[r].gpu;

        engines |= gpu != NULL ? UINT32_C(1) << gpu->engine : 0;
        unreachable |= gpu != NULL ? cstd_gpus_unreachable(gpus, gpu) : 0;
    }
    if (engines == 0) { /* Gradients in host memory are summed where they are. */
        return CST_LANDINGS_NONE;
    }
    return (engines & unreachable) != 0 ? CST_LANDINGS_SHARED : CST_LANDINGS_SINGLE;
}

void cstd_rank_devices_drop(struct cstd_worker *worker)
{
    cstd_rank_devices_use(worker, &worker->gpu, NULL);
    cstd_rank_devices_use(worker, &worker->accelerator, NULL);
}

/* Returns the engine of the accelerator of @worker's pool (@i = 0), or of its device reservation
 * and states (@i = 1); NULL: none. */
static struct cstd_engine *engine_of(const struct cstd_worker *worker, uint32_t i)
{
    const struct cstd_gpu *gpu = i == 0 ? worker->gpu : worker->accelerator;

    return gpu != NULL ? &worker->job->daemon->engines->v[gpu->engine] : NULL;
}

void cstd_rank_devices_need(const struct cstd_worker *worker)
{
    struct cstd_engines *engines = worker->job->daemon->engines;

    for (unsigned i = 0; i < engines->n_nodes; i++) {
        cstd_engine_need(&engines->v[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct cstd_engine *engine = engine_of(worker, i);

        if (engine != NULL) {
            cstd_engine_need(engine);
        }
    }
}

int cstd_rank_devices_await(const struct cstd_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < 2 * job->world; i++) {
        const struct cstd_engine *engine = engine_of(&job->workers[i / 2], i % 2);

        if (engine != NULL && engine->state == CSTD_ENGINE_FAILED) {
            return cst_err_set(err, CST_EENGINE, "%s", engine->why);
        }
        if (engine != NULL && engine->granularity == 0) {
            rc = CST_EAGAIN;
        }
    }
    return rc;
}
