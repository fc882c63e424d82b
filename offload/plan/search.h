/* SPDX-License-Identifier: Apache-2.0 */
/* The data structures of the search and the functions that its parts share. Private to
 * offload/plan/.
 *
 *   plan.c          the order: check, search, answer
 *   search.c        the state of a search at its beginning; its budget; comparison of points
 *   knobs.c         the table of knobs: the values that the search starts from and those it tries
 *   descent.c       the search: the starting points, then the best value of one knob after another
 *   point_layout.c  the layout of a point
 *   fit.c           blocks and bytes of a point: what fits, and what is missing
 *   reservation.c   updates on accelerators: device reservations, states that stay there, k
 *   drives.c        states on drives
 *   bound.c         lower bound and estimate of a step's time
 *   evaluate.c      simulation of a point
 *   reasons.c       the bottleneck, and why runners-up lost */
#ifndef CST_PLAN_SEARCH_H
#define CST_PLAN_SEARCH_H

#include "offload/plan/plan.h"

/* A point of the search: the values of the knobs, and what follows from them. */
struct cst_plan_point {
    /* The fields from here on are values of knobs. */

    /* Capacities of the size classes. n_sizes 0: no layout has the capacity that was asked for. */
    uint64_t sizes[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_sizes;
    /* Number of size classes whose chunks fit the device reservation; 0: no device reservation. */
    uint32_t update_classes;
    bool lends; /* The ranks' pools lend memory for updates; then there is no device reservation. */
    /* If the planner chooses the device reservation: it also keeps gradients, which then need not
     * be copied up. */
    bool keeps_gradients;
    /* If the planner chooses the states that stay on accelerators: bytes of each rank's accelerator
     * that they may take. */
    uint64_t states_asked;
    /* This size class gets additional blocks first, then the following ones, then class 0 and so
     * on. */
    uint32_t first_class;
    uint64_t pool_limit; /* Bytes of a device that blocks may take; UINT64_MAX: all that is left. */
    uint32_t depth;      /* Depth of prefetch; 0: as deep as blocks allow. */

    /* The fields from here on follow from the knobs. */

    uint64_t device_states; /* Bytes of each rank's accelerator for states that stay there. */
    uint32_t n_blocks[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_chunks;
    uint64_t pool_bytes, host_bytes, padding_bytes;
    /* Bytes of states that are to be on drives, and those of them that are not, because their
     * chunks are too large for a part. */
    uint64_t drive_asked, drive_lacks;
    /* Bytes of host memory in which states on drives are updated, and those of states that stay in
     * host memory because they would make the former larger. */
    uint64_t window_bytes, drive_stays;
    uint64_t device_update_bytes; /* Bytes of each rank's accelerator for updates. */
    uint64_t bound_ns, estimate_ns;
    double estimated_cost; /* The cost if the step takes estimate_ns. */
    bool replayed;
    struct cst_replay_result result; /* If replayed; step_ns is UINT64_MAX if it cannot run. */
};

/* The smallest shortage of one limit among some candidates. */
struct cst_plan_short {
    uint64_t bytes; /* 0: no candidate was short. */
    struct cst_err err;
};

/* Why nothing fits. A limit is to blame if candidates fit everything else. If every candidate
 * exceeds both limits, both are to blame, and the candidate with the smallest total shortage is
 * reported. */
struct cst_search_lack {
    /* Least shortage of device memory among candidates that fit the host's memory. */
    struct cst_plan_short device;
    /* Least shortage of host memory among candidates that fit a device. */
    struct cst_plan_short host;
    /* Shortage of device memory of the candidate with the smallest total shortage. */
    struct cst_plan_short device_of_both;
    /* Shortage of host memory of the candidate with the smallest total shortage. */
    struct cst_plan_short host_of_both;
    struct cst_err err; /* Why a candidate that fits could not be simulated. */
};

struct cst_search {
    const struct cst_plan_config *config;
    /* The ranks' device as devices[0] and, if it is another one, the device that makes updates. */
    struct cst_rates rates;
    bool host; /* The ranks compute on the processor. */
    /* Index into the devices of `rates` of the accelerator with device reservations. */
    uint32_t accelerator;
    /* Maximum number of device reservations, which is the number of accelerators. */
    uint32_t n_reservations;
    uint64_t grain; /* Granularity of accelerators' memory in bytes. */
    /* device_update_bytes of the configuration, or what its device_states imply. */
    uint64_t update_request;
    bool lends;  /* The ranks' pools lend memory for updates, as the configuration says. */
    bool splits; /* The search now tries states that stay on accelerators, as its own choice. */
    /* Fastest step without states on accelerators; UINT64_MAX: nothing fits. */
    uint64_t without_ns;
    uint32_t world;
    /* Number of ranks that the simulated one represents; 1: all ranks are simulated. */
    uint32_t stands_for;
    uint64_t activation_bytes;
    uint64_t device_left;          /* Bytes of a device without activations. */
    double compute_ns;             /* Least compute time of a step. */
    struct cst_plan_point *points; /* Owned. */
    uint32_t n_points, capacity;
    uint32_t best; /* Index into points; UINT32_MAX: none was simulated. */
    struct cst_search_lack lack;

    /* The layout that was built last: the model's chunk and offset fields are those of it. */

    bool is_built;
    struct cst_plan_point built; /* The point of `layout`. */
    struct cst_layout layout;    /* Owned if is_built. */

    /* The budget, of events, of layouts and of the caller's patience. */

    uint64_t events_left;
    bool stopped; /* config->stop has returned true. */
    /* Limit for one simulation if there is no other plan, and for all that look for the
     * bottleneck. */
    uint64_t events_most;
    uint64_t n_events, n_replayed;
    uint64_t n_layouts;    /* Layouts built so far. */
    uint64_t most_layouts; /* With so many layouts no new amounts of states are tried. */
};

/* -- search.c --------------------------------------------------------------------------------- */

/* True if accelerators update chunks of the point. */
static inline bool cst_search_updates_there(const struct cst_plan_point *point)
{
    return point->device_update_bytes > 0 || point->lends;
}

/* Number of ranks that the simulated one of @point represents. Of pools that lend memory each is
 * simulated. */
static inline uint32_t cst_search_stands_for(const struct cst_search *search,
                                             const struct cst_plan_point *point)
{
    return point->lends ? 1 : search->stands_for;
}

/* True if several ranks compute on accelerators that cannot access each other's memory. */
static inline bool cst_search_is_apart(const struct cst_search *search)
{
    return search->config->apart && !search->host && search->world > 1;
}

/* Check @config and initialise the search, without points. */
int cst_search_open(struct cst_search *search, const struct cst_plan_config *config,
                    struct cst_err *err);
void cst_search_close(struct cst_search *search);
/* True if the caller wants the search to end: no further layout or simulation is begun. Calls
 * config->stop until it returns true once. */
bool cst_search_stops(struct cst_search *search);
/* Number of events that simulations of one search may take. */
uint64_t cst_search_events(const struct cst_plan_config *config);
/* Bytes of a device that the point uses, without activations. */
uint64_t cst_search_memory(const struct cst_plan_point *point);
/* @ns, a time of @point's step, made longer if the point wastes much of its blocks, or takes much
 * host memory for states on drives: the search minimises this cost. */
double cst_search_cost(const struct cst_search *search, const struct cst_plan_point *point,
                       uint64_t ns);
/* The rule for ties: true if @a costs less than @b or, if they cost the same, uses less memory or
 * has fewer chunks. */
bool cst_search_is_better(const struct cst_search *search, const struct cst_plan_point *a,
                          const struct cst_plan_point *b);

/* -- descent.c -------------------------------------------------------------------------------- */

/* Search for the best point and set search->best, unless no point can be simulated. A second call
 * continues with the points of the first one. CST_ENOMEM; CST_ETIMEDOUT: simulations take too
 * long. */
int cst_search_run(struct cst_search *search);

/* -- point_layout.c --------------------------------------------------------------------------- */

/* The configuration of the point's layout. */
struct cst_layout_config cst_search_layout_config(const struct cst_search *search,
                                                  const struct cst_plan_point *point);
/* Build the layout of the point, unless it is the last one that was built. *out is borrowed until
 * the next layout is built. Statuses as cst_layout_build. */
int cst_search_layout(struct cst_search *search, const struct cst_plan_point *point,
                      const struct cst_layout **out, struct cst_err *err);
/* Give @point chunks of about @elems elements (0: the layout chooses). Its n_sizes is 0 if there is
 * no layout with such chunks, or if the search may not build one. CST_ENOMEM. */
int cst_search_set_capacity(struct cst_search *search, uint64_t elems,
                            struct cst_plan_point *point);
#define CST_SEARCH_SPLITS 5 /* Number of ways to divide a device between blocks and states. */
/* Bytes of each rank's accelerator for states, in the @i-th way to divide what the device
 * reservation of @point leaves between blocks and states. CST_ENOTFOUND: there are no more ways.
 * CST_ENOMEM. */
int cst_search_split(struct cst_search *search, const struct cst_plan_point *point, uint32_t i,
                     uint64_t *bytes);
/* Compute the point's states on accelerators, and build its layout. *out is NULL if it cannot have
 * what it asks for, or if the search may not build more layouts. CST_ENOMEM. */
int cst_search_prepare(struct cst_search *search, struct cst_plan_point *point,
                       const struct cst_layout **out);

/* -- fit.c ------------------------------------------------------------------------------------ */

/* Compute the results of @point from its knobs. False: it does not fit, and search->lack is
 * updated. */
bool cst_search_fit(struct cst_search *search, struct cst_plan_point *point,
                    const struct cst_layout *layout);
/* Report the limit that no candidate meets and the missing bytes: CST_EPOOL, CST_EBUDGET. CST_OK
 * and no message: no candidate was short. */
int cst_search_tell_lack(const struct cst_search *search, struct cst_err *err);

/* -- bound.c, evaluate.c, reasons.c ----------------------------------------------------------- */

/* Compute bound_ns and estimate_ns of a point that fits. */
void cst_search_bound(const struct cst_search *search, struct cst_plan_point *point,
                      const struct cst_layout *layout);
/* Simulate @point as @replay says; core, rates and rows are filled in. */
int cst_search_simulate(const struct cst_search *search, const struct cst_plan_point *point,
                        const struct cst_layout *layout, struct cst_replay_config *replay,
                        struct cst_replay_result *out, struct cst_err *err);
/* The bottleneck of the point, as a constant string. */
const char *cst_search_binds(const struct cst_search *search, const struct cst_plan_point *point,
                             const struct cst_layout *layout);
/* Why @loser is not better than @best: one sentence with numbers. */
void cst_search_why(const struct cst_plan_point *loser, const struct cst_plan_point *best,
                    char words[CST_PLAN_WORDS]);
/* Why the best point has a device reservation, lent memory or neither, if the planner chose
 * that. */
void cst_search_why_update(const struct cst_search *search, char words[CST_PLAN_WORDS]);
/* Why the best point keeps so many states on accelerators, if the planner chose that. */
void cst_search_why_states(const struct cst_search *search, char words[CST_PLAN_WORDS]);

#endif
