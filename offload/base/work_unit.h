/* SPDX-License-Identifier: Apache-2.0 */
/* A unit of work, which a rank gets where a schedule gives out work (dispatch.h). */
#ifndef CST_WORK_UNIT_H
#define CST_WORK_UNIT_H

#include <stdbool.h>
#include <stdint.h>

struct cst_work_unit {
    uint64_t number; /* From 1. A unit that is given to another rank gets another number. */
    uint32_t pass;   /* Number of the pass, from 0. */
    uint32_t stage;  /* Number of the stage, from 0. */
    uint32_t micro;  /* Number of the micro-batch, from 0. */
    bool backward;
    bool begins; /* When it is taken: the rank has not kept this pass before. */
};

/* What a rank says when it names a unit as the last one that it has done. */
enum cst_work_report {
    CST_WORK_DONE,  /* It has done the unit that it has. */
    CST_WORK_KNOWN, /* Nothing new: it has said so before, or has had no unit yet. */
    CST_WORK_STALE, /* It names a unit that it neither has nor has done last. */
};

#endif
