/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/tiers/tier.h"

#include "daemon/base/daemon_state.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/engines.h"
#include "daemon/engine/gpus.h"
#include "offload/layout/tier.h"

#include <stdio.h>
#include <string.h>

void cstd_tiers_init(struct cstd_tiers *tiers, struct cstd_daemon *daemon,
                     const struct cstd_tier_kinds *kinds)
{
    *tiers = (struct cstd_tiers){.daemon = daemon, .kinds = kinds};
    tiers->v[CST_TIER_HOST] = (struct cstd_tier){.kind = kinds->host,
                                                 .daemon = daemon,
                                                 .number = CST_TIER_HOST,
                                                 .name = "host",
                                                 .product = "host",
                                                 .label = "host",
                                                 .os_node = -1,
                                                 .budget = daemon->pool};
}

/* -- lookup ----------------------------------------------------------------------------------- */

const struct cstd_tier *cstd_tiers_host(const struct cstd_daemon *daemon)
{
    return &daemon->tiers->v[CST_TIER_HOST];
}

const struct cstd_tier *cstd_tiers_of_gpu(const struct cstd_daemon *daemon, struct cstd_gpu *gpu)
{
    struct cstd_tier *tier;

    if (gpu == NULL) {
        return NULL;
    }
    tier = &daemon->tiers->v[gpu->engine];
    if (tier->kind == NULL) {
        *tier = (struct cstd_tier){.kind = gpu->paced ? daemon->tiers->kinds->paced
                                                      : daemon->tiers->kinds->gpu,
                                   .daemon = daemon->tiers->daemon,
                                   .number = gpu->engine,
                                   .name = gpu->uuid,
                                   .uuid = gpu->uuid,
                                   .product = gpu->name,
                                   .os_node = gpu->os_node,
                                   .budget = &gpu->pool,
                                   .gpu = gpu};
        (void)snprintf(tier->label, sizeof tier->label, "%s:%u", tier->kind->name, gpu->index);
    }
    return tier;
}

const struct cstd_tier *cstd_tiers_of_drive(const struct cstd_daemon *daemon,
                                            struct cstd_drive *drive)
{
    struct cstd_tier *tier = &daemon->tiers->v[drive->engine];

    /* The name of a place that was taken again is another one. */
    if (tier->kind == NULL || strcmp(tier->label, drive->name) != 0) {
        *tier = (struct cstd_tier){.kind = daemon->tiers->kinds->disk,
                                   .daemon = daemon->tiers->daemon,
                                   .number = drive->engine,
                                   .name = drive->uuid,
                                   .uuid = drive->uuid,
                                   .product = drive->name,
                                   .os_node = -1,
                                   .budget = &drive->files};
        (void)snprintf(tier->label, sizeof tier->label, "%s", drive->name);
    }
    return tier;
}

const struct cstd_tier *cstd_tiers_of_number(const struct cstd_daemon *daemon, uint32_t number)
{
    const struct cstd_tier *tier = &daemon->tiers->v[number];

    return tier->kind != NULL
               ? tier
               : cstd_tiers_of_gpu(daemon, cstd_gpus_of_engine(daemon->gpus, number));
}

const struct cstd_tier *cstd_tiers_of_uuid(const struct cstd_daemon *daemon, const char *uuid)
{
    struct cstd_drive *drive;

    if (uuid == NULL) {
        return cstd_tiers_host(daemon);
    }
    if (cstd_drive_is(uuid)) {
        return cstd_drives_get(daemon->drives, uuid, &drive, NULL) == CST_OK
                   ? cstd_tiers_of_drive(daemon, drive)
                   : NULL;
    }
    return cstd_tiers_of_gpu(daemon, cstd_gpus_of_uuid(daemon->gpus, uuid));
}

const struct cstd_tier *cstd_tiers_of_segment(const struct cstd_daemon *daemon,
                                              const struct cstd_segment *segment)
{
    return cstd_tiers_of_number(daemon,
                                segment->device ? (uint32_t)segment->populate : CST_TIER_HOST);
}

int cstd_tiers_choose(const struct cstd_daemon *daemon, const char *device, uint32_t rank,
                      const struct cstd_tier **out, struct cst_err *err)
{
    struct cstd_gpu *gpu = NULL;
    int rc = cstd_gpus_choose(daemon->gpus, device, rank, &gpu, err);

    *out = gpu != NULL ? cstd_tiers_of_gpu(daemon, gpu) : cstd_tiers_host(daemon);
    if (rc == CST_OK && !cstd_tier_computes(*out)) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "device '%.63s' only copies: no pool can be there", device);
    }
    return rc;
}

/* -- properties ------------------------------------------------------------------------------- */

uint64_t cstd_tier_grain(const struct cstd_tier *tier)
{
    return tier->kind->apart ? tier->daemon->engines->v[tier->number].granularity : 1;
}

struct cstd_budget *cstd_tier_budget(const struct cstd_tier *tier)
{
    tier->kind->count(tier);
    return tier->budget;
}

struct cst_set cstd_tier_engines(const struct cstd_tier *tier)
{
    return tier->kind->apart ? cst_set_of(tier->number) : (struct cst_set){{0}};
}

bool cstd_tier_is_lost(const struct cstd_tier *tier)
{
    return tier->kind->apart && tier->daemon->engines->v[tier->number].state == CSTD_ENGINE_FAILED;
}

bool cstd_tier_reaches(const struct cstd_tier *from, const struct cstd_tier *to)
{
    const struct cst_set unreachable = from->kind->unreachable(from),
                         engines = cstd_tier_engines(to);

    return from == to || !cst_set_meet(&unreachable, &engines);
}

void cstd_tier_use(const struct cstd_tier *tier)
{
    if (tier->kind->apart) {
        cstd_engine_use(&tier->daemon->engines->v[tier->number]);
    }
}

void cstd_tier_unuse(const struct cstd_tier *tier)
{
    if (tier->kind->apart) {
        cstd_engine_unuse(&tier->daemon->engines->v[tier->number]);
    }
}
