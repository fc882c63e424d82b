/* SPDX-License-Identifier: Apache-2.0 */
/* A device's stream, and the copies that its worker makes itself. Entries are processed in order,
 * and wait for the copies that they need. */
#include "offload/simulate/simulate.h"

#include <stdlib.h>

/* -- copies by the worker ------------------------------------------------------------------- */

static void run_copy(struct cst_sim_worker *w)
{
    if (w->n_copies == 0 || w->copying.active) {
        return;
    }
    w->copying.left = w->copies[w->first_copy].work;
    w->copy_begin = w->sim->now;
    cst_sim_start(w->sim, &w->copying);
}

void cst_sim_copy_weights(struct cst_sim_worker *w, uint32_t chunk, uint64_t bytes)
{
    struct cst_sim_copy copy = {.number = w->sequence.last_copy + 1, .chunk = chunk};

    if (w->n_copies == w->copies_capacity) {
        uint32_t grown = w->copies_capacity == 0 ? 16 : 2 * w->copies_capacity;
        struct cst_sim_copy *ring = malloc(grown * sizeof *ring);

        if (ring == NULL) {
            cst_sim_out_of_memory(w->sim);
            return;
        }
        for (uint32_t i = 0; i < w->n_copies; i++) {
            ring[i] = w->copies[(w->first_copy + i) % w->copies_capacity];
        }
        free(w->copies);
        w->copies = ring;
        w->first_copy = 0;
        w->copies_capacity = grown;
    }
    copy.work = (double)bytes / w->rates->up * 1e9 + w->rates->copy_latency_s * 1e9;
    w->copies[(w->first_copy + w->n_copies++) % w->copies_capacity] = copy;
    cst_sequence_copied(&w->sequence, chunk, copy.number);
    w->sim->moved_up += bytes * (uint64_t)w->stands_for;
    run_copy(w);
}

void cst_sim_copied(struct cst_sim_worker *w)
{
    const struct cst_sim_copy *copy = &w->copies[w->first_copy];

    w->copied = copy->number;
    cst_sim_interval(w->sim, CST_LANE_UP, w->device, copy->chunk, false, w->copy_begin);
    w->first_copy = (w->first_copy + 1) % w->copies_capacity;
    w->n_copies--;
    run_copy(w);
}

/* -- the stream ----------------------------------------------------------------------------- */

void cst_sim_enqueue(struct cst_sim_worker *w, const struct cst_sim_entry *entry)
{
    if (w->n_entries == w->entries_capacity) {
        uint32_t grown = w->entries_capacity == 0 ? 64 : 2 * w->entries_capacity;
        struct cst_sim_entry *ring = malloc(grown * sizeof *ring);

        if (ring == NULL) {
            cst_sim_out_of_memory(w->sim);
            return;
        }
        for (uint32_t i = 0; i < w->n_entries; i++) {
            ring[i] = w->entries[(w->first + i) % w->entries_capacity];
        }
        free(w->entries);
        w->entries = ring;
        w->first = 0;
        w->entries_capacity = grown;
    }
    w->entries[(w->first + w->n_entries++) % w->entries_capacity] = *entry;
}

void cst_sim_compute(struct cst_sim_worker *w, const struct cst_sim_entry *entry)
{
    uint64_t now = w->sim->now;

    w->computing = *entry;
    w->compute_begin = now;
    if (now > w->idle_since) {
        w->wait_ns += now - w->idle_since;
        cst_sim_interval(w->sim, CST_LANE_WAIT, w->rank, entry->at.op, entry->at.backward,
                         w->idle_since);
    }
    w->compute.left = entry->work;
    w->compute.cores = w->cores;
    cst_sim_start(w->sim, &w->compute);
}

bool cst_sim_run_stream(struct cst_sim_worker *w)
{
    bool passed = false;

    while (w->n_entries > 0 && !w->compute.active) {
        struct cst_sim_entry entry = w->entries[w->first];

        if (!entry.is_mark && entry.number > w->copied) {
            break;
        }
        w->first = (w->first + 1) % w->entries_capacity;
        w->n_entries--;
        if (entry.is_mark) {
            w->sequence.passed = entry.number;
            passed = true;
        } else {
            cst_sim_compute(w, &entry);
        }
    }
    return passed;
}
