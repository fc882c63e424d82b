/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/simulated.h"

#include "daemon/base/log.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void describe(struct cstd_gpu *gpu, unsigned index, uint64_t bytes)
{
    *gpu = (struct cstd_gpu){.index = index,
                             .paced = true,
                             .name = CSTD_PACED,
                             .memory_bytes = bytes,
                             .os_node = -1,
                             .pool.limit = bytes};
    (void)snprintf(gpu->uuid, sizeof gpu->uuid, CSTD_PACED ":%u", index);
    (void)snprintf(gpu->pool_name, sizeof gpu->pool_name, "memory of " CSTD_PACED ":%u", index);
    gpu->pool.name = gpu->pool_name;
    gpu->pool.key = "memory in [paced]";
}

int cstd_simulated_init(struct cstd_gpu_list *out, struct cstd_engines *engines,
                        const struct cstd_settings *config, struct cst_err *err)
{
    char memory[CST_SIZE_TEXT];
    int rc = CST_OK;

    *out = (struct cstd_gpu_list){.n = 0};
    for (unsigned i = 0; i < config->n_paced && rc == CST_OK; i++) {
        struct cstd_gpu *gpu = &out->v[i];

        describe(gpu, i, config->paced_memory);
        rc = cstd_engines_add_device(engines, gpu->uuid, gpu->os_node, &gpu->engine, err);
        if (rc == CST_OK) {
            out->n++;
            cstd_log(CSTD_LOG_NOTICE,
                     "%s is a simulated accelerator of %s: %" PRIu64 " B/s up, %" PRIu64
                     " B/s down, %" PRIu64 " elements/s",
                     gpu->uuid, cst_size_text(gpu->memory_bytes, memory), config->paced_up,
                     config->paced_down, config->paced_update);
        }
    }
    return rc;
}

int cstd_simulated_find(struct cstd_gpu_list *list, const char *device, uint32_t rank,
                        struct cstd_gpu **out, struct cst_err *err)
{
    if (list->n == 0) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "device '%.63s': this daemon has no simulated accelerator (devices in [paced])",
            device);
    }
    if (strcmp(device, CSTD_PACED) == 0) {
        *out = &list->v[rank % list->n];
        return CST_OK;
    }
    for (unsigned i = 0; i < list->n; i++) {
        if (strcmp(device, list->v[i].uuid) == 0) {
            *out = &list->v[i];
            return CST_OK;
        }
    }
    return cst_err_set(err, CST_ENOTFOUND,
                       "no device '%.63s' (there: " CSTD_PACED ":0 to " CSTD_PACED ":%u)", device,
                       list->n - 1);
}
