/* SPDX-License-Identifier: Apache-2.0 */
/* For which other machines a core waits at present; machine_waits.h measures waits that are over.
 */
#include "offload/core/core.h"
#include "offload/books/membership.h"
#include "offload/core/core_state.h"

/* The machines that have told nothing about the rank blocks @blocks of the job, which they have. */
static uint64_t machines_of(const struct cst_core *core, uint64_t blocks)
{
    uint64_t machines = 0;

    for (uint32_t m = 0; m < core->machines->n; m++) {
        if ((core->agreement.members[m].rank_blocks & blocks) != 0) {
            machines |= cst_machine_bit(m);
        }
    }
    return machines;
}

/* The machines of which partials of chunk @c are missing here, in its home. */
static uint64_t missing_partials(const struct cst_core *core, uint32_t c)
{
    const struct cst_chunk_partials *chunk = &core->partials.chunks[c];
    const struct cst_when now = cst_membership_now(core);
    const struct cst_partials_sum *sum;
    uint64_t come;

    if (chunk->state != CST_PARTIALS_HERE || !cst_membership_is_home(core, c)) {
        return 0;
    }
    sum = &core->partials.sums[chunk->slot];
    come = cst_when_compare(&sum->when, &now) == 0 ? sum->come : 0;
    return machines_of(core, ~come & ~core->partials.here);
}

/* The homes of which sums are missing. They can wait themselves for one that @partials has: then
 * that one is meant. */
static uint64_t missing_sums(const struct cst_core *core, uint64_t partials)
{
    uint64_t homes = 0;

    for (uint32_t c = 0; c < core->n_chunks && partials == 0; c++) {
        const uint32_t home = cst_membership_home(core, c);

        if (core->partials.chunks[c].state == CST_PARTIALS_HERE && home != CST_NONE) {
            homes |= cst_machine_bit(home);
        }
    }
    return partials | homes;
}

/* The coordinator waits for members that are not READY, or not SYNCED. */
static uint64_t missing_members(const struct cst_core *core)
{
    const struct cst_agreement *a = &core->agreement;
    uint64_t machines = 0;

    if (a->ready) {
        return core->membership.members & ~a->n_ready;
    }
    for (uint64_t left = core->membership.members; left != 0; left &= left - 1) {
        const uint32_t m = (uint32_t)__builtin_ctzll(left);

        machines |= a->members[m].synced != a->last + 1 ? cst_machine_bit(m) : 0;
    }
    return machines;
}

uint64_t cst_core_waits_for(const struct cst_core *core, uint64_t *since_ns)
{
    uint64_t machines = 0;

    if (core->machines == NULL || core->machine_waits.since == 0 || core->membership.members == 0) {
        return 0;
    }
    *since_ns = core->machine_waits.since;
    if (core->attempt.closing && !core->agreement.ready) {
        for (uint32_t c = 0; c < core->n_chunks; c++) {
            machines |= missing_partials(core, c);
        }
        machines = missing_sums(core, machines);
    } else if (cst_membership_is_coordinator(core)) {
        machines = missing_members(core);
    } else {
        machines = cst_machine_bit(cst_membership_coordinator(core));
    }
    return machines & ~cst_machine_bit(core->machines->self);
}
