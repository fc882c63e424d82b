/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#include "daemon/engine/gpus.h"

#include "daemon/base/daemon_state.h"
#include "daemon/base/log.h"
#include "daemon/engine/simulated.h"
#include "daemon/engine/probe.h"
#include "proto/size.h"
#include "proto/cistern.pb-c.h"
#include "daemon/budget/arena.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/engines.h"
#include "daemon/settings/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cstd_gpus_wait(struct cstd_gpus *gpus, struct cstd_session *session, uint64_t id,
                   const ProtobufCMessage *message, cstd_held_fn serve, struct cst_err *err)
{
    return cstd_hold(&gpus->wishes, 0, session, id, CISTERN__MSG_TYPE__MSG_JOB_OPEN, message, serve,
                     err);
}

/* -- probe ------------------------------------------------------------------------------------ */

static void end_without(struct cstd_gpus *gpus, enum cstd_log_level level, const char *why)
{
    gpus->state = CSTD_GPUS_NONE;
    gpus->list.n = 0;
    (void)snprintf(gpus->why, sizeof gpus->why, "%s", why);
    cstd_log(level, "no GPU: %s", gpus->why);
}

static int add_engines(struct cstd_gpus *gpus, struct cst_err *err)
{
    int rc = CST_OK;

    for (unsigned i = 0; i < gpus->list.n && rc == CST_OK; i++) {
        struct cstd_gpu *gpu = &gpus->list.v[i];

        rc = cstd_engines_add_device(gpus->daemon->engines, gpu->uuid, gpu->os_node, &gpu->engine,
                                     err);
    }
    return rc;
}

_Static_assert(1 + CSTD_SETTINGS_MAX_PACED + CSTD_GPU_MAX <= CSTD_QUOTA_MAX_POOLS,
               "each device that has pools is a resource");

/* Register the budget of each accelerator in the list with the users' quotas. */
static void count_pools(struct cstd_gpus *gpus, struct cstd_gpu_list *list)
{
    for (unsigned i = 0; i < list->n; i++) {
        struct cstd_budget *pool = &list->v[i].pool;

        pool->resource =
            cstd_quota_add_pool(gpus->daemon->quota, pool->name, cstd_budget_size(pool));
        pool->remains = gpus->daemon->remains;
    }
}

static void log_list(const struct cstd_gpus *gpus)
{
    char memory[CST_SIZE_TEXT], pool[CST_SIZE_TEXT];

    for (unsigned i = 0; i < gpus->list.n; i++) {
        const struct cstd_gpu *gpu = &gpus->list.v[i];

        cstd_log(CSTD_LOG_NOTICE, "cuda:%u is %s, %s, %s, of which %s are for pools", gpu->index,
                 gpu->uuid, gpu->name, cst_size_text(gpu->memory_bytes, memory),
                 cst_size_text(cstd_budget_size(&gpu->pool), pool));
    }
}

static void take_list(struct cstd_gpus *gpus, const char *text, size_t n)
{
    const struct cstd_settings *config = gpus->daemon->config;
    struct cst_err err = {0};

    if (cstd_gpu_list_parse(text, n, &gpus->list, &err) != CST_OK) {
        end_without(gpus, err.status == CST_EUNSUPPORTED ? CSTD_LOG_INFO : CSTD_LOG_WARNING,
                    err.text);
        return;
    }
    gpus->why[0] = '\0';
    if (cstd_gpu_list_select(&gpus->list, config->gpu_devices, config->gpu_pool, &err) != CST_OK) {
        (void)snprintf(gpus->why, sizeof gpus->why, "devices in [gpu]: %.360s", err.text);
        cstd_log(CSTD_LOG_ERROR, "%s", gpus->why);
    }
    if (gpus->list.n == 0) {
        /* A copy, because end_without writes to gpus->why. */
        char why[sizeof gpus->why];

        (void)snprintf(why, sizeof why, "%s", gpus->why);
        end_without(gpus, CSTD_LOG_WARNING, why);
    } else if (add_engines(gpus, &err) != CST_OK) {
        end_without(gpus, CSTD_LOG_ERROR, err.text);
    } else {
        gpus->state = CSTD_GPUS_FOUND;
        if (!config->gpu_peers) {
            cstd_gpu_list_separate(&gpus->list);
        }
        count_pools(gpus, &gpus->list);
        log_list(gpus);
    }
}

static void on_probe(void *arg, const char *text, size_t n, const struct cst_err *why)
{
    struct cstd_gpus *gpus = arg;
    char words[sizeof gpus->why];

    gpus->probe = NULL;
    if (why == NULL) {
        take_list(gpus, text, n);
    } else {
        (void)snprintf(words, sizeof words, "%.200s --probe: %.150s",
                       gpus->daemon->engines->gpu_program, why->text);
        end_without(gpus, CSTD_LOG_WARNING, words);
    }
    if (gpus->on_known != NULL) {
        gpus->on_known(gpus->daemon);
    }
    cstd_held_serve(&gpus->wishes, 0, gpus->daemon);
}

void cstd_gpus_start(struct cstd_gpus *gpus, struct cstd_daemon *daemon)
{
    struct cst_err err = {0};

    *gpus = (struct cstd_gpus){.daemon = daemon, .state = CSTD_GPUS_NONE};
    TAILQ_INIT(&gpus->wishes);
    if (cstd_simulated_init(&gpus->paced, daemon->engines, daemon->config, &err) != CST_OK) {
        cstd_log(CSTD_LOG_ERROR, "devices in [paced]: %s", err.text);
    }
    count_pools(gpus, &gpus->paced);
    if (strcmp(daemon->config->gpu_devices, "none") == 0) {
        end_without(gpus, CSTD_LOG_DEBUG, "'devices = none' in [gpu]");
    } else if (daemon->engines->gpu_program[0] == '\0') {
#ifdef HAVE_CUDA
        end_without(
            gpus, CSTD_LOG_INFO,
            "no engine program cistern-engine-cuda: use --engine-cuda or CISTERN_ENGINE_CUDA");
#else
        end_without(gpus, CSTD_LOG_DEBUG, "built without CUDA");
#endif
    } else if (cstd_probe_start(&gpus->probe, &daemon->loop, daemon->engines->gpu_program, on_probe,
                                gpus, &err) != CST_OK) {
        end_without(gpus, CSTD_LOG_WARNING, err.text);
    } else {
        gpus->state = CSTD_GPUS_LOOKING;
    }
}

void cstd_gpus_stop(struct cstd_gpus *gpus)
{
    if (gpus->probe != NULL) {
        cstd_probe_cancel(gpus->probe);
        gpus->probe = NULL;
        gpus->state = CSTD_GPUS_NONE;
    }
    cstd_held_drop(&gpus->wishes);
}

void cstd_gpus_await(struct cstd_gpus *gpus)
{
    while (gpus->state == CSTD_GPUS_LOOKING) {
        (void)uv_run(&gpus->daemon->loop, UV_RUN_ONCE);
    }
}

/* -- lookup ----------------------------------------------------------------------------------- */

/* Find the accelerator with the UUID @uuid or, if that is NULL, with the engine @engine. */
static struct cstd_gpu *find(struct cstd_gpus *gpus, const char *uuid, unsigned engine)
{
    struct cstd_gpu_list *const lists[] = {&gpus->paced, &gpus->list};

    for (unsigned k = 0; k < 2; k++) {
        for (unsigned i = 0; i < lists[k]->n; i++) {
            struct cstd_gpu *gpu = &lists[k]->v[i];

            if (uuid != NULL ? strcmp(gpu->uuid, uuid) == 0 : gpu->engine == engine) {
                return gpu;
            }
        }
    }
    return NULL;
}

struct cstd_gpu *cstd_gpus_of_engine(struct cstd_gpus *gpus, unsigned engine)
{
    return find(gpus, NULL, engine);
}

struct cstd_gpu *cstd_gpus_of_uuid(struct cstd_gpus *gpus, const char *uuid)
{
    return find(gpus, uuid, 0);
}

struct cst_set cstd_gpus_unreachable(const struct cstd_gpus *gpus, const struct cstd_gpu *gpu)
{
    const struct cstd_gpu_list *own = gpu->paced ? &gpus->paced : &gpus->list;
    const struct cstd_gpu_list *other = gpu->paced ? &gpus->list : &gpus->paced;
    struct cst_set engines = {{0}};

    for (unsigned i = 0; i < own->n; i++) {
        if (cst_set_has(&gpu->unreachable, i)) {
            cst_set_add(&engines, own->v[i].engine);
        }
    }
    for (unsigned i = 0; i < other->n; i++) {
        cst_set_add(&engines, other->v[i].engine);
    }
    return engines;
}

/* -- choice of a device ----------------------------------------------------------------------- */

int cstd_gpus_choose(struct cstd_gpus *gpus, const char *device, uint32_t rank,
                     struct cstd_gpu **out, struct cst_err *err)
{
    if (device == NULL || strcmp(device, "auto") == 0 || strcmp(device, "host") == 0) {
        *out = NULL;
        return CST_OK;
    }
    /* Simulated accelerators are known before the probe has ended. */
    if (cstd_paced_is(device)) {
        return cstd_simulated_find(&gpus->paced, device, rank, out, err);
    }
    if (strncmp(device, "cuda", 4) != 0 && strncasecmp(device, "GPU-", 4) != 0 &&
        strncasecmp(device, "MIG-", 4) != 0) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "device '%.63s' is none of auto, host, cuda, cuda:N, GPU-..., "
                           "MIG-..., paced and paced:N",
                           device);
    }
    if (gpus->state == CSTD_GPUS_LOOKING) {
        return CST_EAGAIN;
    }
    if (gpus->state == CSTD_GPUS_NONE) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "device '%.63s': this daemon has only 'host', no GPU: %s", device,
                           gpus->why);
    }
    return cstd_gpu_list_find(&gpus->list, device, rank, out, err);
}
