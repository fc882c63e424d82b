/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/deaths.h"

bool cstd_deaths_add(struct cstd_deaths *deaths, bool accelerator, uint64_t now)
{
    bool late = now - deaths->first_ns > CSTD_DEATHS_SECONDS * UINT64_C(1000000000);

    if (deaths->n == 0 || (late && !accelerator)) {
        *deaths = (struct cstd_deaths){.first_ns = now};
    }
    return ++deaths->n > CSTD_DEATHS_MAX;
}
