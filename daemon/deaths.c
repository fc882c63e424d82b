/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/deaths.h"

bool cst_deaths_add(struct cst_deaths *deaths, bool accelerator, uint64_t now)
{
    bool late = now - deaths->first_ns > CST_DEATHS_SECONDS * UINT64_C(1000000000);

    if (deaths->n == 0 || (late && !accelerator)) {
        *deaths = (struct cst_deaths){.first_ns = now};
    }
    return ++deaths->n > CST_DEATHS_MAX;
}
