/* SPDX-License-Identifier: Apache-2.0 */
/* What the search is made of, and what its parts share. Private to offload/plan/.
 *
 *   plan.c     the order of things: the question, tries, replays, the answer
 *   tries.c    the points of the search: capacities, and what can be tried with each
 *   climb.c    replays of the promising ones, then of the neighbours of the best
 *   fit.c      from knobs to blocks and bytes: what fits, what is short
 *   room_try.c accelerators that update: rooms, states that stay there, k
 *   split_try.c how many states stay there, where that is chosen
 *   bound.c    arithmetic: how long a step takes at least, and about
 *   play_try.c a try through the replay
 *   words.c    what binds, why the others lost */
#ifndef CST_PLAN_SEARCH_H
#define CST_PLAN_SEARCH_H

#include "offload/plan/plan.h"

/* A point of the search: knobs, then what follows from them. */
struct cst_plan_try {
    /* knobs */
    uint64_t sizes[CST_LAYOUT_MAX_CLASSES]; /* capacities */
    uint32_t n_sizes;
    uint64_t state_room; /* bytes of a device that states may take */
    uint64_t block_room; /* bytes of a device that blocks may take; UINT64_MAX: what is left */
    uint32_t
        first_class; /* this size class gets blocks first, then those after it, then class 0 on */
    bool once;       /* one reduction of all micro-batches */
    uint32_t n_through;     /* classes whose chunks fit a room, where that is chosen; 0: no room */
    bool holds;             /* such a room keeps gradients, too, which then need not come up */
    uint64_t device_states; /* bytes of each rank's accelerator for states that stay there */
    uint32_t depth;         /* of prefetch, 0: as deep as blocks allow */
    enum cst_core_eviction eviction;
    /* what fits */
    uint32_t n_blocks[CST_LAYOUT_MAX_CLASSES];
    uint32_t n_chunks;
    uint32_t n_device;             /* first chunks whose states are on a device */
    uint32_t n_moments, n_masters; /* last chunks of which these rows are on disk */
    bool over;                     /* gradients in the weights' places */
    uint64_t pool_bytes, state_bytes, host_bytes, disk_bytes, padding_bytes;
    uint64_t update_room; /* of each rank's accelerator */
    uint64_t bound_ns, estimate_ns;
    bool replayed;
    struct cst_replay_result result;
};

/* The smallest shortage of one limit among some candidates. */
struct cst_plan_short {
    uint64_t bytes; /* 0: no candidate was short of it */
    struct cst_err err;
};

/* Why nothing fits. A limit is at fault where candidates fit all but it; where every candidate is
 * short of both limits, both are, and the candidate that is short of least in all is told. */
struct cst_search_lack {
    struct cst_plan_short device;         /* of candidates that the host's memory holds */
    struct cst_plan_short host;           /* of candidates that fit a device */
    struct cst_plan_short device_of_both; /* of the candidate that is short of both by least */
    struct cst_plan_short host_of_both;   /* of the same candidate */
    struct cst_err err;                   /* why a candidate that fits could not be played */
};

struct cst_search {
    const struct cst_plan_config *config;
    struct cst_rates rates; /* with one kind of device, and another one that updates, if need be */
    bool host;              /* the first is the processor */
    uint32_t accelerator;   /* in rates: whose rooms updates are done in */
    uint32_t n_rooms;       /* at most; accelerators */
    uint64_t grain;         /* of accelerators' memory, bytes */
    uint64_t room_wish;     /* config's update_room, or what its device_states imply */
    bool splits;         /* tries are made with states that stay on accelerators, of its choice */
    uint64_t without_ns; /* the fastest step before that; UINT64_MAX: nothing fits */
    uint32_t world;
    uint32_t stands_for; /* ranks, of the one that is played; 1: all are played */
    uint64_t activation_bytes;
    uint64_t room;              /* of a device, for blocks and states */
    double compute_ns;          /* of a step, at least */
    struct cst_plan_try *tries; /* owned */
    uint32_t n_tries, capacity;
    uint32_t best; /* index; UINT32_MAX: none was replayed */
    uint64_t events_left;
    bool stopped;         /* config->stop has said so; see cst_search_stops */
    uint64_t events_most; /* of one replay at any price, and of all that tell what binds */
    uint64_t n_events, n_replayed;
    uint64_t n_layouts;    /* built so far */
    uint64_t most_layouts; /* with states of the plan's choice: none is built beyond so many */
    struct cst_search_lack lack;
};

/* The caller wants no more of the search: no further layout or replay is begun. Asks config->stop
 * until it says so once. */
bool cst_search_stops(struct cst_search *search);

/* Check @config; no tries yet. */
int cst_search_open(struct cst_search *search, const struct cst_plan_config *config,
                    struct cst_err *err);

/* Lay the model out for the try; *out to be closed. As cst_layout_build. */
int cst_search_layout(struct cst_search *search, const struct cst_plan_try *try,
                      struct cst_layout *out, struct cst_err *err);
struct cst_layout_config cst_search_layout_config(const struct cst_search *search,
                                                  const struct cst_plan_try *try);

/* tries.c. Add @try, whose own layout @layout is, if it fits and is new. *number: its own, or that
 * of the same one; UINT32_MAX: it does not fit. */
int cst_search_add(struct cst_search *search, struct cst_plan_try try,
                   const struct cst_layout *layout, uint32_t *number);
/* A layout of first-class chunks of about @elems (0: its own choice), to be closed if *found; else
 * there is none of that size. */
int cst_search_find(struct cst_search *search, uint64_t elems, struct cst_plan_try *try,
                    struct cst_layout *layout, bool *found);
/* Layouts, in all, that a search with states that stay on accelerators may build of @model. */
uint64_t cst_search_split_layouts(const struct cst_model *model);
/* Add all that is tried at first. */
int cst_search_list(struct cst_search *search);

/* climb.c. Set search->best, unless nothing runs. */
int cst_search_replay(struct cst_search *search);
/* Try neighbours of the best as long as one is better. */
int cst_search_climb(struct cst_search *search);
/* Bytes of a device that it takes, but for activations. */
uint64_t cst_search_memory(const struct cst_plan_try *try);
bool cst_search_is_better(const struct cst_plan_try *a, const struct cst_plan_try *b);
/* The best, or one as good that wastes little. */
uint32_t cst_search_thriftiest(const struct cst_search *search);

/* fit.c: fill in what follows from the knobs. False: it does not fit, search->lack knows. */
bool cst_search_fit(struct cst_search *search, struct cst_plan_try *try,
                    const struct cst_layout *layout);
/* Say which limit no candidate meets, and by how many bytes: CST_EPOOL, CST_EBUDGET. CST_OK, and
 * nothing said: no candidate was short. */
int cst_search_tell_lack(const struct cst_search *search, struct cst_err *err);
/* Rows of the try, per chunk: 1 << cst_row. */
uint8_t cst_search_device_rows(const struct cst_plan_try *try, const struct cst_layout *layout,
                               uint32_t chunk);
uint8_t cst_search_disk_rows(const struct cst_plan_try *try, const struct cst_layout *layout,
                             uint32_t chunk);

/* room_try.c. CST_EINVAL: wishes for rooms and states on accelerators that cannot be. */
int cst_search_check_rooms(const struct cst_search *search, struct cst_err *err);
/* Bytes of each accelerator's room for the try: what its ranks want of it, in whole grains. */
uint64_t cst_search_room_of_each(const struct cst_search *search, const struct cst_plan_try *try);
/* Accelerators with states of their own, as the layout wants them. */
void cst_search_devices(const struct cst_search *search, const struct cst_plan_try *try,
                        struct cst_layout_config *config);
/* What an accelerator has of @bytes of each rank, and the memory it has, if there are such beside
 * the ranks' devices; UINT64_MAX: there are none, or it is not known. */
uint64_t cst_search_of_each(const struct cst_search *search, uint64_t bytes);
uint64_t cst_search_accelerator_bytes(const struct cst_search *search);
/* Bytes of each rank's accelerator that a room for the try takes. */
uint64_t cst_search_room_bytes(const struct cst_search *search, const struct cst_plan_try *try,
                               const struct cst_layout *layout);
/* The rooms of the try, how many, and k in *interleave. */
uint32_t cst_search_rooms(const struct cst_search *search, const struct cst_plan_try *try,
                          const struct cst_layout *layout,
                          struct cst_core_room rooms[CST_CORE_MAX_ROOMS], uint32_t *interleave);

/* split_try.c. States that stay on accelerators are the plan's choice, and there may be some. */
bool cst_search_may_split(const struct cst_search *search);
/* So is a room that keeps gradients: one's that is the only contribution. */
bool cst_search_may_hold(const struct cst_search *search);
#define CST_SEARCH_GRAIN (2u << 20) /* of a GPU's memory */
typedef int (*cst_search_visit_fn)(struct cst_search *search, const struct cst_plan_try *try,
                                   const struct cst_layout *layout);
/* Visit the ways to divide what is free beside the room of @site, whose @layout has no such states:
 * each that settles to other bytes, with its own layout. CST_ENOMEM, or what @visit returns. */
int cst_search_each_split(struct cst_search *search, const struct cst_plan_try *site,
                          const struct cst_layout *layout, cst_search_visit_fn visit);
/* So many layouts that takes at most, for all rooms of a capacity. */
uint32_t cst_search_layouts_of_site(const struct cst_search *search);
/* Cut @try's device_states down to those of whole chunks that fit; its layout to be closed if
 * *found, else no chunk's do, or enough layouts were built. @layout has none. As
 * cst_search_layout. */
int cst_search_settle(struct cst_search *search, struct cst_plan_try *try,
                      const struct cst_layout *layout, struct cst_layout *out, bool *found,
                      struct cst_err *err);

/* bound.c: bound_ns and estimate_ns of a try that fits. */
void cst_search_bound(const struct cst_search *search, struct cst_plan_try *try,
                      const struct cst_layout *layout);

/* play_try.c: replay @try as @replay says (core, rates and rows are filled in). */
int cst_search_play(const struct cst_search *search, const struct cst_plan_try *try,
                    const struct cst_layout *layout, struct cst_replay_config *replay,
                    struct cst_replay_result *out, struct cst_err *err);

/* words.c */
const char *cst_search_binds(const struct cst_search *search, const struct cst_plan_try *try,
                             const struct cst_layout *layout);
void cst_search_why(const struct cst_plan_try *loser, const struct cst_plan_try *best,
                    char words[CST_PLAN_WORDS]);
/* Why the best try has so many states on accelerators, where that was chosen. */
void cst_search_why_states(const struct cst_search *search, char words[CST_PLAN_WORDS]);

#endif
