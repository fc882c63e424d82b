/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a core and of its ranks. core.h has the functions that fill them in. */
#ifndef CST_CORE_STATS_H
#define CST_CORE_STATS_H

#include "offload/base/command.h"
#include "offload/layout/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Number of a pool's blocks in each state; the states sum up to capacity. */
struct cst_books {
    uint32_t capacity, free, cached, leased, moving, pending, quarantined;
};

enum cst_rank_state {
    CST_RANK_ABSENT,
    CST_RANK_ATTACHED,
    CST_RANK_LEFT,
    CST_RANK_HUNG_UP,
    CST_RANK_DEAD
};

struct cst_rank_stats {
    enum cst_rank_state state;
    struct cst_books books;                               /* All size classes together. */
    struct cst_books class_books[CST_LAYOUT_MAX_CLASSES]; /* Each size class. */
    /* Fetches of weights; each one that is granted counts in one of hits, late and misses. */
    uint64_t hits; /* The weights were in a block before the worker waited for them. */
    /* Their copy was under way when the worker began to wait, and it waited for the rest. */
    uint64_t late;
    uint64_t misses; /* Neither: the copy began only when the worker waited. */
    /* Time for which the worker waited for weights, hits, late and misses together. */
    uint64_t weight_wait_ns;
    uint64_t prefetches, evictions, surprises, waits;
    uint64_t bytes_up, bytes_down;
    uint64_t bytes_peer; /* Bytes copied from peers' pools; not included in bytes_up. */
    uint32_t micro;      /* Current micro-batch of the step, from 0. */
};

/* Of another machine of the job (machine_waits.h). */
struct cst_machine_stats {
    uint64_t wait_ns;  /* Time for which steps here have waited for it. */
    double wait_share; /* Part of the time of the last steps here, 0 to 1; newer ones weigh more. */
};

enum cst_core_phase {
    CST_PHASE_READY,
    CST_PHASE_RUNNING,
    CST_PHASE_IDLE,
    CST_PHASE_INTERRUPTED,
    CST_PHASE_FAILED
};

/* How far a pause is (offload/core/pause.h). */
enum cst_pause_state { CST_PAUSE_NONE, CST_PAUSE_ASKED, CST_PAUSE_HELD, CST_PAUSE_PAUSED };

struct cst_core_stats {
    enum cst_core_phase phase;
    bool initialised; /* A SYNC has completed, or the states were restored. */
    /* All ranks have asked for the step, which is committed as soon as the engines are done. */
    bool closing;
    uint64_t attempt, step, n_skipped;
    /* Steps with gradients beyond proto/grad_limit.h, including the skipped ones. */
    uint64_t n_overflows;
    uint64_t adam_step; /* Number of optimizer steps that were applied. */
    /* Of a durable job: the last step whose seal this core was told of; 0: none. */
    uint64_t sealed_step;
    uint32_t chunks_clean, chunks_updating, chunks_reducing;
    uint32_t chunks_ahead; /* EARLY: chunks whose update of the uncommitted step was issued. */
    /* EARLY: gradients that were handed in again for chunks that were updated before the
     * interruption. */
    uint64_t n_dropped;
    uint64_t commands_in_flight;
    double last_loss, last_grad_norm;
    bool has_hyper;         /* There was a step; `hyper` has its hyper-parameters. */
    struct cst_hyper hyper; /* Without the clip factor. */
    bool saving;            /* A save is under way. */
    enum cst_pause_state pause;
    bool pools_empty; /* Of a pause that releases pools: no block holds anything. */
    /* WRITEs that the death of the daemon has cut off, and that workers have not repeated yet. */
    uint32_t n_writes_left;
    uint64_t save_wait_ns;   /* Time for which commits have waited for saves. */
    uint64_t reader_wait_ns; /* The same for readers. */
    uint64_t last_step_ns;   /* Time between the last two commits. */
    uint32_t interleave;     /* k that is in use; 0: no chunk gets a device update. */
    uint64_t n_updates;      /* Completed updates of chunks. */
    /* Completed updates of chunks that were made on accelerators, in device reservations or on
     * device states. */
    uint64_t n_device_updates;
    uint64_t n_lent_updates;         /* Those of them that were made in lent memory. */
    uint64_t n_reservation_failures; /* Commands of device updates that failed and were replaced. */
    /* Device reservations that had too many failures or whose engine is lost. Only chunks whose
     * states are there are still updated in them. */
    uint32_t n_reservations_given_up;
    /* Steps whose updates are complete, or were cut off by those of the next step. */
    uint64_t n_rounds;
    /* k of the last step counted in n_rounds; 0: none. `interleave` can already belong to the next
     * step. */
    uint32_t last_interleave;
    /* Time during which at least one update was in flight, for the last step counted in
     * n_rounds. */
    uint64_t last_update_ns;
    /* By how much the last committed step would have been shorter if updates took no time; see
     * instant.c. */
    uint64_t last_exposed_ns;
    uint64_t update_ns, exposed_ns; /* last_update_ns and last_exposed_ns, summed over all steps. */
};

#endif
