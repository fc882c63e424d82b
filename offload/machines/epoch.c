/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/machines/epoch.h"

#include <inttypes.h>

void cst_epoch_add(struct cst_epoch *epoch, uint32_t machine, uint64_t life)
{
    cst_set_add(&epoch->members, machine);
    epoch->lives[machine] = life;
}

void cst_epoch_drop(struct cst_epoch *epoch, uint32_t machine)
{
    cst_set_drop(&epoch->members, machine);
    epoch->lives[machine] = 0;
}

int cst_epoch_check(const struct cst_epoch *epoch, struct cst_err *err)
{
    if ((epoch->number == 0) != cst_set_none(&epoch->members)) {
        return cst_err_set(err, CST_EPROTO, "epoch %" PRIu64 " with %" PRIu32 " members",
                           epoch->number, cst_set_count(&epoch->members));
    }
    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        if (cst_set_has(&epoch->members, m) != (epoch->lives[m] != 0)) {
            return cst_err_set(err, CST_EPROTO,
                               "epoch %" PRIu64 ": machine %" PRIu32 " is %s member, and its life"
                               " is %" PRIu64,
                               epoch->number, m, cst_set_has(&epoch->members, m) ? "a" : "no",
                               epoch->lives[m]);
        }
    }
    return CST_OK;
}

bool cst_epoch_quorum(const struct cst_epoch *epoch, const struct cst_set *answered,
                      const struct cst_set *down)
{
    struct cst_set with = cst_set_intersect(epoch->members, *answered);
    struct cst_set without = cst_set_minus(epoch->members, *answered);

    return 2 * cst_set_count(&with) > cst_set_count(&epoch->members) ||
           (!cst_set_none(&with) && cst_set_within(&without, down));
}
