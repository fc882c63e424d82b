/* SPDX-License-Identifier: Apache-2.0 */
/* The table of what the search can choose. Private to offload/plan/. */
#ifndef CST_PLAN_KNOBS_H
#define CST_PLAN_KNOBS_H

#include "offload/plan/search.h"

/* Set value number @i of a knob in @point. CST_ENOTFOUND: there are no more values. CST_ENOMEM. */
typedef int (*cst_knob_fn)(struct cst_search *search, uint32_t i, struct cst_plan_point *point);

struct cst_knob {
    const char *name; /* In reasons: "with other ...". */
    /* True if the search may choose this knob for a point with @point's other values; NULL:
     * always. */
    bool (*fits)(const struct cst_search *search, const struct cst_plan_point *point);
    /* The values that the search starts from, in combination with those of all other knobs. NULL:
     * the point keeps its value. */
    cst_knob_fn start;
    cst_knob_fn near; /* The values that the descent tries instead of @point's own. */
    /* The field of a point in which the knob shows, as an offset and a size: points with the same
     * values in all these fields are the same plan. */
    size_t offset, bytes;
    bool is_minor; /* Points that differ in minor knobs alone are variants of one plan. */
};

/* The knobs, in the order in which starting points get their values and in which the descent goes
 * through them: first those that matter most. */
enum cst_knob_number {
    CST_KNOB_SIZES,
    CST_KNOB_RESERVATION,
    CST_KNOB_LENT,
    CST_KNOB_STATES,
    CST_KNOB_BLOCKS,
    CST_KNOB_POOL,
    CST_KNOB_DEPTH, /* The only one that can be changed while a job runs. */
    CST_KNOBS
};

extern const struct cst_knob cst_knobs[CST_KNOBS];

/* True if @knob may be chosen for @point. */
bool cst_knob_fits(const struct cst_knob *knob, const struct cst_search *search,
                   const struct cst_plan_point *point);
/* True if @a and @b differ in @knob. */
bool cst_knob_differs(const struct cst_knob *knob, const struct cst_plan_point *a,
                      const struct cst_plan_point *b);
/* Number of layouts of @model that a search with states on accelerators may build. */
uint64_t cst_knobs_split_layouts(const struct cst_model *model);

#endif
