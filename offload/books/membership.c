/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/membership.h"

#include "offload/core/core_state.h"

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

int cst_when_compare(const struct cst_when *a, const struct cst_when *b)
{
    int epoch = compare(a->epoch, b->epoch), attempt = compare(a->attempt, b->attempt);

    return epoch != 0 ? epoch : attempt != 0 ? attempt : compare(a->step, b->step);
}

struct cst_when cst_membership_when(const struct cst_machine_message *message)
{
    return (struct cst_when){message->epoch, message->attempt, message->step};
}

struct cst_when cst_membership_now(const struct cst_core *core)
{
    return (struct cst_when){core->membership.epoch, core->attempt.number, core->step};
}

uint32_t cst_membership_coordinator(const struct cst_core *core)
{
    return (uint32_t)__builtin_ctzll(core->membership.members);
}

bool cst_membership_is_coordinator(const struct cst_core *core)
{
    return cst_membership_coordinator(core) == core->machines->self;
}

uint32_t cst_membership_home(const struct cst_core *core, uint32_t chunk)
{
    const struct cst_layout_machines *machines = &core->layout->machines;

    for (uint32_t i = 0; i < machines->copies; i++) {
        uint32_t keeper = cst_layout_keeper(machines, chunk, i);

        if ((core->membership.members >> keeper & 1) != 0) {
            return keeper;
        }
    }
    return CST_NONE;
}

bool cst_membership_is_home(const struct cst_core *core, uint32_t chunk)
{
    return core->machines != NULL && cst_membership_home(core, chunk) == core->machines->self;
}

struct cst_machine_message *cst_membership_tell(struct cst_core *core, uint32_t to,
                                                enum cst_message_kind kind, uint32_t chunk)
{
    struct cst_machine_message *message = cst_core_tell(core, to);

    message->kind = kind;
    message->epoch = core->membership.epoch;
    message->attempt = core->attempt.number;
    message->step = core->step;
    message->chunk = chunk;
    message->waited_for = CST_MACHINE_UNKNOWN;
    return message;
}

bool cst_membership_is_current(const struct cst_core *core,
                               const struct cst_machine_message *message)
{
    return core->attempt.phase == CST_PHASE_RUNNING && message->attempt == core->attempt.number &&
           message->step == core->step;
}
