/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/rank_devices.h"

#include "daemon/base/daemon_state.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/job/job.h"
#include "daemon/job/worker.h"

const char *cstd_rank_devices_name(const struct cstd_worker *worker)
{
    return worker->tier->name;
}

void cstd_rank_devices_use(const struct cstd_tier **of, const struct cstd_tier *tier)
{
    const struct cstd_tier *was = *of;

    *of = tier;
    if (tier != was) {
        cstd_tier_use(tier);
        cstd_tier_unuse(was);
    }
}

void cstd_rank_devices_set(struct cstd_worker *worker, const struct cstd_tier *tier)
{
    bool asks = worker->device_update_asked > 0 || worker->states_asked > 0;

    cstd_rank_devices_use(&worker->tier, tier);
    cstd_rank_devices_use(&worker->update_tier, asks ? tier->kind->updater(tier, worker->rank)
                                                     : cstd_tiers_host(tier->daemon));
}

uint32_t cstd_rank_devices_near_node(const struct cstd_worker *worker)
{
    const struct cstd_engines *engines = worker->job->daemon->engines;
    const struct cstd_tier *tier = worker->tier->kind->apart ? worker->tier : worker->update_tier;

    for (uint32_t i = 0; i < engines->n_nodes; i++) {
        if (tier->os_node >= 0 && engines->v[i].os_node == (unsigned)tier->os_node) {
            return i + 1;
        }
    }
    return 0;
}

enum cst_layout_landings cstd_rank_devices_landings(const struct cstd_job *job)
{
    struct cst_set engines = {{0}}, unreachable = {{0}};

    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_tier *tier = job->workers[r].tier;

        engines = cst_set_union(engines, cstd_tier_engines(tier));
        unreachable = cst_set_union(unreachable, tier->kind->unreachable(tier));
    }
    if (cst_set_none(&engines)) { /* Gradients in host memory are summed where they are. */
        return CST_LANDINGS_NONE;
    }
    return cst_set_meet(&engines, &unreachable) ? CST_LANDINGS_SHARED : CST_LANDINGS_SINGLE;
}

void cstd_rank_devices_drop(struct cstd_worker *worker)
{
    const struct cstd_tier *host = cstd_tiers_host(worker->job->daemon);

    cstd_rank_devices_use(&worker->tier, host);
    cstd_rank_devices_use(&worker->update_tier, host);
}

/* Returns the engine of the accelerator of @worker's pool (@i = 0), or of its device reservation
 * and states (@i = 1); NULL: none. */
static struct cstd_engine *engine_of(const struct cstd_worker *worker, uint32_t i)
{
    const struct cstd_tier *tier = i == 0 ? worker->tier : worker->update_tier;

    return tier->kind->apart ? &worker->job->daemon->engines->v[tier->number] : NULL;
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
    return rc == CST_OK ? cstd_files_await(&job->files, err) : rc;
}
