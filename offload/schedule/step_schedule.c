/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/schedule/step_schedule.h"

#include <inttypes.h>
#include <stdio.h>

/* The first row that serves a model is its schedule; the last one serves all. */
static const struct cst_step_schedule *const rows[] = {&cst_dispatched, &cst_data_parallel};

const struct cst_step_schedule *cst_step_schedule_of(const struct cst_model *model)
{
    uint32_t i = 0;

    while (i + 1 < sizeof rows / sizeof rows[0] && !rows[i]->serves(model)) {
        i++;
    }
    return rows[i];
}

/* -- units ------------------------------------------------------------------------------------ */

void cst_work_unit_say(const struct cst_work_unit *unit, char text[CST_WORK_UNIT_TEXT])
{
    (void)snprintf(text, CST_WORK_UNIT_TEXT,
                   "the %s pass of stage %" PRIu32 " over micro-batch %" PRIu32,
                   unit->backward ? "backward" : "forward", unit->stage, unit->micro);
}

static bool has_unit(const struct cst_core *core, uint32_t rank, struct cst_work_unit *out)
{
    (void)core;
    (void)rank;
    (void)out;
    return false;
}

static enum cst_work_report report(const struct cst_core *core, uint32_t rank, uint64_t number)
{
    (void)core;
    (void)rank;
    return number == 0 ? CST_WORK_KNOWN : CST_WORK_STALE;
}

static uint64_t last(const struct cst_core *core, uint32_t rank)
{
    (void)core;
    (void)rank;
    return 0;
}

static void done(struct cst_core *core, uint32_t rank, double loss)
{
    (void)core;
    (void)rank;
    (void)loss;
}

static bool get_unit(struct cst_core *core, uint32_t rank, struct cst_work_unit *out)
{
    return has_unit(core, rank, out);
}

static void leave(struct cst_core *core, uint32_t rank)
{
    (void)core;
    (void)rank;
}

static bool is_complete(const struct cst_core *core)
{
    (void)core;
    return true;
}

static bool first(const struct cst_core *core, struct cst_work_unit *out, uint32_t *rank)
{
    (void)core;
    (void)out;
    (void)rank;
    return false;
}

const struct cst_step_work cst_step_no_work = {.unit = has_unit,
                                               .report = report,
                                               .last = last,
                                               .done = done,
                                               .take = get_unit,
                                               .leave = leave,
                                               .gone = get_unit,
                                               .is_complete = is_complete,
                                               .first = first};
