/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping and unmapping of a segment. SEGMENT_ADD maps the segment; the lanes then populate its
 * pages piece by piece and lock them. SEGMENT_DROP makes a lane unmap the segment. The loop thread
 * never touches a page. The end of each operation is reported by mail.
 *
 *   add --> ADDING --lanes: populate, lock; or import, write zeros--> mail --> READY
 *   drop --> DROPPING --no uses, a lane: unmap--> mail --> freed */
#ifndef CST_MAPPING_H
#define CST_MAPPING_H

#include "kernels/engine/thread_pool.h"
#include "kernels/engine/mailbox.h"
#include "kernels/engine/segments.h"

#include <stdatomic.h>

/* Bytes that are populated at a time. An urgent copy may have to wait for one piece. */
#define CSTE_MAPPING_PIECE (4u << 20)

/* A segment of the engine with its mapping. Fields without another rule belong to the loop
 * thread. While the task runs, the lane threads write `note`, `fd` and `made`. */
struct cste_mapping {
    /* Entry of the segment in the set. First member, so a pointer to it is a pointer to the
     * mapping. */
    struct cste_segment segment;
    struct cste_task task;      /* Task on the lanes: populate and lock, import, or unmap. */
    struct cste_mail mail;      /* Posted when task is done. */
    struct cste_device *device; /* Device; borrowed. */
    struct cste_mailbox *box;   /* Mailbox; borrowed. Each finished piece knocks at the mailbox. */
    struct cste_thread_pool *lanes; /* Where the task was submitted; borrowed. */
    /* File descriptor, owned while the segment is being added. -1 afterwards, or if there is
     * none. */
    int fd;
    uint64_t request; /* Request number of the SEGMENT_ADD, for the answer. */
    /* Request number of the SEGMENT_DROP, for the answer. Valid if drop is set. */
    uint64_t drop_request;
    /* Number of commands that were submitted before the SEGMENT_DROP. These commands have to end
     * first. */
    uint64_t drop_after;
    bool drop;    /* A SEGMENT_DROP was received. */
    bool discard; /* The pages are returned to the system when the segment is unmapped. */
    /* The segment is memory of the device or of another machine, which is not locked. */
    bool import;
    uint64_t file_offset;       /* As in struct cste_mem. */
    bool made;                  /* The memory was created here, and fd is its handle. */
    bool populate;              /* Touch every page, or write zeros to a file. */
    bool lock;                  /* Keep the pages from being swapped out. */
    bool sparse;                /* As in struct cste_mem. */
    bool served;                /* As in struct cste_mem. */
    uint32_t machine, id_there; /* As in struct cste_mem. */
    /* Description of a failure that is not fatal (binding, locking). Status 0: there was none. */
    struct cst_err note;
    /* Description of the first failure. Written once, by the thread that set failed. */
    struct cst_err err;
    atomic_bool failed; /* Adding the segment has failed. The remaining pieces do nothing. */
    _Atomic uint64_t populated; /* Bytes populated so far. */
    atomic_ulong *progress;     /* Counter of the watchdog; borrowed. */
    uint64_t reported;          /* Bytes reported in the last PROGRESS. Loop thread. */
};

/* Map the segment, of @bytes, from mapping->fd for NUMA node @node (-1: any node). Device memory is
 * left to the lanes. The caller has set segment.id, mail.deliver, device, box, fd, import,
 * file_offset, populate, lock, sparse, served, machine, id_there and progress. CST_EINVAL: the fd
 * or the size is wrong; CST_ENOMEM. Loop thread. */
int cste_mapping_open(struct cste_mapping *mapping, uint64_t bytes, int node, struct cst_err *err);

/* Returns whether the lanes have anything to do. If not, the segment is ready after
 * cste_mapping_open. */
bool cste_mapping_has_work(const struct cste_mapping *mapping);

/* Let @lanes import, or populate and lock, the segment. The mail is posted at the end;
 * mapping->failed then gives the result. */
void cste_mapping_populate(struct cste_mapping *mapping, struct cste_thread_pool *lanes);

/* Let @lanes unmap the segment, which nobody uses. The mail is posted at the end. */
void cste_mapping_unmap(struct cste_mapping *mapping, struct cste_thread_pool *lanes);

/* Make pieces that have not begun do nothing. The mail of cste_mapping_populate is then posted
 * soon. Any thread. */
void cste_mapping_cancel(struct cste_mapping *mapping);

/* Close the fd. The segment stays mapped. */
void cste_mapping_close_fd(struct cste_mapping *mapping);

#endif
