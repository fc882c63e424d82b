/* SPDX-License-Identifier: Apache-2.0 */
/* The data structures of the search and the functions that its parts share. Private to
 * offload/plan/.
 *
 *   plan.c        the order: check, candidates, simulations, answer
 *   search.c      the state of a search at its beginning; comparison of points
 *   candidates.c  the points of the search: capacities, and what is tried with each
 *   refine.c      simulations of the promising points, then of the neighbours of the best
 *   fit.c         blocks and bytes of a point: what fits, and what is missing
 *   room_try.c    updates on accelerators: device reservations, states that stay there, k
 *   split_try.c   the amount of states that stay there, if the planner chooses it
 *   bound.c       lower bound and estimate of a step's time
 *   evaluate.c    simulation of a point
 *   reasons.c     the bottleneck, and why runners-up lost */
#ifndef CST_PLAN_SEARCH_H
#define CST_PLAN_SEARCH_H

#include "offload/plan/plan.h"

/* A point of the search: parameters, and what follows from them. */
struct cst_plan_try {
    /* The fields from here on are parameters. */

    uint64_t sizes[CST_LAYOUT_MAX_CLASSES]; /* Capacities of the size classes. */
    uint32_t n_sizes;
    uint64_t state_room; /* Bytes of a device that states may take. */
    uint64_t block_room; /* Bytes of a device that blocks may take; UINT64_MAX: all that is left. */
    /* This size class gets additional blocks first, then the following ones, then class 0 and so
     * on. */
    uint32_t first_class;
    bool once; /* One reduction of all micro-batches. */
    /* If the planner chooses the device reservation: number of size classes whose chunks fit it; 0:
     * no device reservation. */
    uint32_t n_through;
    /* If the planner chooses the device reservation: it also keeps gradients, which then need not
     * be copied up. */
    bool holds;
    uint64_t device_states; /* Bytes of each rank's accelerator for states that stay there. */
    uint32_t depth;         /* Depth of prefetch; 0: as deep as blocks allow. */
    enum cst_core_eviction eviction;

    /* The fields from here on follow from the parameters. */

    uint32_t n_blocks[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_chunks;
    uint32_t n_device; /* Number of first chunks whose states are on a device. */
    /* Numbers of last chunks whose moments, and whose master weights, are on disk. */
    uint32_t n_moments, n_masters;
    bool over; /* Gradients are summed in weight rows. */
    uint64_t pool_bytes, state_bytes, host_bytes, disk_bytes, padding_bytes;
    uint64_t device_update_bytes; /* Bytes of each rank's accelerator for updates. */
    uint64_t bound_ns, estimate_ns;
    bool replayed;
    struct cst_replay_result result;
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
    uint32_t n_rooms;
    uint64_t grain;        /* Granularity of accelerators' memory in bytes. */
    uint64_t room_request; /* device_update_bytes of the configuration, or what its device_states
                              imply. */
    bool splits; /* The search now tries states that stay on accelerators, as its own choice. */
    /* Fastest step without states on accelerators; UINT64_MAX: nothing fits. */
    uint64_t without_ns;
    uint32_t world;
    /* Number of ranks that the simulated one represents; 1: all ranks are simulated. */
    uint32_t stands_for;
    uint64_t activation_bytes;
    uint64_t room;              /* Bytes of a device for blocks and states. */
    double compute_ns;          /* Least compute time of a step. */
    struct cst_plan_try *tries; /* Owned. */
    uint32_t n_tries, capacity;
    uint32_t best; /* Index into tries; UINT32_MAX: none was simulated. */
    uint64_t events_left;
    bool stopped; /* config->stop has returned true; see cst_search_stops. */
    /* Limit for one simulation if there is no other plan, and for all that look for the
     * bottleneck. */
    uint64_t events_most;
    uint64_t n_events, n_replayed;
    uint64_t n_layouts;    /* Layouts built so far. */
    uint64_t most_layouts; /* Maximum of n_layouts while `splits`. */
    struct cst_search_lack lack;
};

/* True if the caller wants the search to end: no further layout or simulation is begun. Calls
 * config->stop until it returns true once. */
bool cst_search_stops(struct cst_search *search);

/* Number of events that simulations of one search may take. */
uint64_t cst_search_events(const struct cst_plan_config *config);

/* Check @config and initialise the search, without points. */
int cst_search_open(struct cst_search *search, const struct cst_plan_config *config,
                    struct cst_err *err);

/* Build the layout of the point; the caller closes *out. Statuses as cst_layout_build. */
int cst_search_layout(struct cst_search *search, const struct cst_plan_try *try,
                      struct cst_layout *out, struct cst_err *err);
/* The configuration of the point's layout. */
struct cst_layout_config cst_search_layout_config(const struct cst_search *search,
                                                  const struct cst_plan_try *try);

/* candidates.c. Add @try, whose layout is @layout, if it fits and is new. *number: its number or
 * that of an equal point; UINT32_MAX: it does not fit. */
int cst_search_add(struct cst_search *search, struct cst_plan_try try,
                   const struct cst_layout *layout, uint32_t *number);
/* Build a layout with first-class chunks of about @elems elements (0: chosen). If *found, the
 * caller closes it; else there is none of that size. */
int cst_search_find(struct cst_search *search, uint64_t elems, struct cst_plan_try *try,
                    struct cst_layout *layout, bool *found);
/* Maximum number of layouts of @model that a search for states on accelerators builds. */
uint64_t cst_search_split_layouts(const struct cst_model *model);
/* Add the initial points. */
int cst_search_list(struct cst_search *search);

/* refine.c. Simulate the promising points and set search->best, unless none can be simulated. */
int cst_search_replay(struct cst_search *search);
/* Try neighbours of the best point as long as one is better. */
int cst_search_climb(struct cst_search *search);
/* Bytes of a device that the point uses, without activations. */
uint64_t cst_search_memory(const struct cst_plan_try *try);
/* True if @a is faster than @b or, if they are equally fast, uses less memory or has fewer
 * chunks. */
bool cst_search_is_better(const struct cst_plan_try *a, const struct cst_plan_try *b);
/* The best point, or one that is about as fast and wastes little. */
uint32_t cst_search_thriftiest(const struct cst_search *search);

/* fit.c. Compute the results of @try from its parameters. False: it does not fit, and search->lack
 * is updated. */
bool cst_search_fit(struct cst_search *search, struct cst_plan_try *try,
                    const struct cst_layout *layout);
/* Report the limit that no candidate meets and the missing bytes: CST_EPOOL, CST_EBUDGET. CST_OK
 * and no message: no candidate was short. */
int cst_search_tell_lack(const struct cst_search *search, struct cst_err *err);
/* Rows of @chunk that are on a device, and on disk, as bits 1 << cst_row. */
uint8_t cst_search_device_rows(const struct cst_plan_try *try, const struct cst_layout *layout,
                               uint32_t chunk);
uint8_t cst_search_disk_rows(const struct cst_plan_try *try, const struct cst_layout *layout,
                             uint32_t chunk);

/* room_try.c. CST_EINVAL: impossible requests for device reservations and states on accelerators.
 * CST_EPOOL: they exceed the accelerator's memory. */
int cst_search_check_rooms(const struct cst_search *search, struct cst_err *err);
/* Bytes of each device reservation: the sum of its ranks' shares, rounded down to the
 * granularity. */
uint64_t cst_search_room_of_each(const struct cst_search *search, const struct cst_plan_try *try);
/* Fill in the accelerators with states, for a layout. */
void cst_search_devices(const struct cst_search *search, const struct cst_plan_try *try,
                        struct cst_layout_config *config);
/* Bytes of an accelerator if each rank has @bytes. */
uint64_t cst_search_of_each(const struct cst_search *search, uint64_t bytes);
/* Memory of an accelerator if ranks compute on the processor. UINT64_MAX: they do not, or it is
 * not known. */
uint64_t cst_search_accelerator_bytes(const struct cst_search *search);
/* Bytes of each rank's accelerator for the point's device reservation. */
uint64_t cst_search_room_bytes(const struct cst_search *search, const struct cst_plan_try *try,
                               const struct cst_layout *layout);
/* The device reservations of the point: returns their number, and k in *interleave. */
uint32_t cst_search_rooms(const struct cst_search *search, const struct cst_plan_try *try,
                          const struct cst_layout *layout,
                          struct cst_core_room rooms[CST_CORE_MAX_UPDATE_DEVICES],
                          uint32_t *interleave);

/* split_try.c. True if the planner chooses the states that stay on accelerators, and there can be
 * some. */
bool cst_search_may_split(const struct cst_search *search);
/* True if the planner can choose a device reservation that keeps gradients: each is the only
 * contribution. */
bool cst_search_may_hold(const struct cst_search *search);
#define CST_SEARCH_GRAIN (2u << 20) /* Granularity of a GPU's memory. */
typedef int (*cst_search_visit_fn)(struct cst_search *search, const struct cst_plan_try *try,
                                   const struct cst_layout *layout);
/* Visit the ways to divide the memory that is left by the device reservation of @site, whose
 * @layout has no states on accelerators: each way with different bytes, with its own layout.
 * CST_ENOMEM, or what @visit returns. */
int cst_search_each_split(struct cst_search *search, const struct cst_plan_try *site,
                          const struct cst_layout *layout, cst_search_visit_fn visit);
/* Maximum number of layouts that the visits build, for all device reservations of one capacity. */
uint32_t cst_search_layouts_of_site(const struct cst_search *search);
/* Reduce @try's device_states to those of whole chunks that fit. If *found, the caller closes *out;
 * else no chunk's states fit, or enough layouts were built. @layout has no states on accelerators.
 * Statuses as cst_search_layout. */
int cst_search_settle(struct cst_search *search, struct cst_plan_try *try,
                      const struct cst_layout *layout, struct cst_layout *out, bool *found,
                      struct cst_err *err);

/* bound.c. Compute bound_ns and estimate_ns of a point that fits. */
void cst_search_bound(const struct cst_search *search, struct cst_plan_try *try,
                      const struct cst_layout *layout);

/* evaluate.c. Simulate @try as @replay says; core, rates and rows are filled in. */
int cst_search_play(const struct cst_search *search, const struct cst_plan_try *try,
                    const struct cst_layout *layout, struct cst_replay_config *replay,
                    struct cst_replay_result *out, struct cst_err *err);

/* reasons.c. The bottleneck of the point, as a constant string. */
const char *cst_search_binds(const struct cst_search *search, const struct cst_plan_try *try,
                             const struct cst_layout *layout);
/* Why @loser is not better than @best: one sentence with numbers. */
void cst_search_why(const struct cst_plan_try *loser, const struct cst_plan_try *best,
                    char words[CST_PLAN_WORDS]);
/* Why the best point keeps so many states on accelerators, if the planner chose that. */
void cst_search_why_states(const struct cst_search *search, char words[CST_PLAN_WORDS]);

#endif
