/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/settings/paced.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool cstd_paced_is(const char *device)
{
    return strncmp(device, CSTD_PACED, strlen(CSTD_PACED)) == 0;
}

char *cstd_paced_argument(const struct cstd_settings *config, char out[CSTD_PACED_ARGUMENT])
{
    (void)snprintf(out, CSTD_PACED_ARGUMENT,
                   "up=%" PRIu64 ",down=%" PRIu64 ",update=%" PRIu64 ",memory=%" PRIu64,
                   config->paced_up, config->paced_down, config->paced_update,
                   config->paced_memory);
    return out;
}
