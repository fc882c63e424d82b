/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/devices.h"

#include "daemon/daemon.h"
#include "daemon/room.h"

const char *cst_devices_name(const struct cst_worker *worker)
{
    return worker->gpu != NULL ? worker->gpu->uuid : "host";
}

void cst_devices_use(struct cst_worker *worker, struct cst_gpu **of, struct cst_gpu *gpu)
{
    struct cst_engines *engines = &worker->job->daemon->engines;
    struct cst_gpu *was = *of;

    *of = gpu;
    if (gpu != NULL && gpu != was) {
        cst_engine_use(&engines->v[gpu->engine]);
    }
    if (was != NULL && gpu != was) {
        cst_engine_unuse(&engines->v[was->engine]);
    }
}

void cst_devices_set(struct cst_worker *worker, struct cst_gpu *gpu)
{
    struct cst_gpu *other = cst_room_accelerator(worker->job->daemon, gpu, worker->rank);

    cst_devices_use(worker, &worker->gpu, gpu);
    cst_devices_use(worker, &worker->accelerator,
                    worker->room_asked > 0 || worker->states_asked > 0 ? other : NULL);
}

void cst_devices_drop(struct cst_worker *worker)
{
    cst_devices_use(worker, &worker->gpu, NULL);
    cst_devices_use(worker, &worker->accelerator, NULL);
}

/* Returns the engine of the accelerator of @worker's pool (@i = 0), or of its device reservation
 * and states (@i = 1); NULL: none. */
static struct cst_engine *engine_of(const struct cst_worker *worker, uint32_t i)
{
    const struct cst_gpu *gpu = i == 0 ? worker->gpu : worker->accelerator;

    return gpu != NULL ? &worker->job->daemon->engines.v[gpu->engine] : NULL;
}

void cst_devices_need(const struct cst_worker *worker)
{
    struct cst_engines *engines = &worker->job->daemon->engines;

    for (unsigned i = 0; i < engines->n_nodes; i++) {
        cst_engine_need(&engines->v[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct cst_engine *engine = engine_of(worker, i);

        if (engine != NULL) {
            cst_engine_need(engine);
        }
    }
}

int cst_devices_await(const struct cst_job *job, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; i < 2 * job->world; i++) {
        const struct cst_engine *engine = engine_of(&job->workers[i / 2], i % 2);

        if (engine != NULL && engine->state == CST_ENGINE_FAILED) {
            return cst_err_set(err, CST_EENGINE, "%s", engine->why);
        }
        if (engine != NULL && engine->granularity == 0) {
            rc = CST_EAGAIN;
        }
    }
    return rc;
}
