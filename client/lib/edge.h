/* SPDX-License-Identifier: Apache-2.0 */
/* The edges of which this rank is an end: their memory, and which slots are between the two parts
 * of a put or take. What a slot is used for is kept here and not in the shared memory, where the
 * other rank could change it. Internal header of libcistern. */
#ifndef CST_EDGE_H
#define CST_EDGE_H

#include "client/lib/copier.h"
#include "client/lib/segment.h"
#include "cistern/status.h"

#include <stdint.h>

struct cst_job;

enum cstc_slot_use { CSTC_SLOT_UNUSED, CSTC_SLOT_PUT, CSTC_SLOT_TAKEN };

/* A slot as this process uses it. */
struct cstc_slot {
    enum cstc_slot_use use;
    uint32_t number;       /* Number of the array, unless UNUSED. */
    bool started;          /* The library copies the array, until cst_edge_wait. */
    struct cstc_copy copy; /* The copy by the library's thread, if `started`. */
    /* The newest copy that the job's device was told to do with the slot; 0: none since the sync.
     * In an edge to oneself it may be under way after the put or take has ended: what comes next is
     * done in the device's order. */
    uint64_t device_copy;
};

struct cstc_edge {
    struct cstc_segment memory; /* Not mapped: this rank is not an end of the edge. */
    /* Memory of the slots; not mapped: they are in `memory`, after the words. */
    struct cstc_segment apart;
    bool on_device;          /* `apart` is memory of a GPU, at an address of the job's device. */
    struct cstc_slot *slots; /* One per slot. Owned. */
    uint32_t next_put;       /* Slot at which the search for a free slot begins. */
    uint32_t next_take;      /* Slot at which the search for an array begins. */
};

/* edge_memory.c: number of edges of which this rank is an end. */
uint32_t cstc_edge_count(const struct cst_job *job);

/* Return whether the job's device copies arrays, so that they may be in its memory. */
bool cstc_edge_by_device(const struct cst_job *job);

/* The memory of an edge, as the daemon sends it. */
struct cstc_edge_fds {
    int fd; /* Head and words; without slots_fd also the slots. */
    uint64_t bytes;
    int slots_fd; /* -1: the slots have no memory of their own. */
    uint64_t slots_bytes;
    bool slots_device; /* slots_fd is a handle of the device, and not a memfd. */
};

/* edge_memory.c: map the memory @fds, which the daemon says to be that of edge @number. The
 * descriptors belong to the caller. After a failure nothing is mapped. *refused: the slots in
 * device memory cannot be mapped, but slots in host memory could be; *why is the cause alone.
 * CST_EPROTO: the memory is not as declared; CST_EUNSUPPORTED: the job's device does not copy
 * arrays, but slots are on it; CST_ENOMEM, or a status of the device. */
int cstc_edge_map(struct cst_job *job, uint32_t number, const struct cstc_edge_fds *fds,
                  bool *refused, struct cst_err *why);

/* edge_memory.c: CST_EINVAL if there is no edge @edge. */
int cstc_edge_check(const struct cst_job *job, int edge, struct cst_err *err);

/* A sync is about to begin, or the memory is about to be unmapped: finish the copies that were
 * started. No slot is between two parts any more. */
void cstc_edge_forget(struct cst_job *job);

/* edge_memory.c: unmap the memory of all edges, except in a forked child, which does not have it.
 */
void cstc_edge_close(struct cst_job *job);

#endif
