/* SPDX-License-Identifier: Apache-2.0 */
/* A segment's way in and out: SEGMENT_ADD maps it, has the lanes back and touch its pages piece by
 * piece, and locks it; SEGMENT_DROP has a lane unmap it. The loop thread never touches a page. The
 * answer comes by mail.
 *
 *   add --> ADDING --lanes: populate, lock; or import--> mail --> READY
 *   drop --> DROPPING --no uses, a lane: unmap--> mail --> freed */
#ifndef CST_MAPPING_H
#define CST_MAPPING_H

#include "kernels/crew.h"
#include "kernels/mailbox.h"
#include "kernels/segments.h"

#include <stdatomic.h>

/* Bytes populated at a time: what a demand copy may have to wait for. */
#define CST_MAPPING_PIECE (4u << 20)

struct cst_mapping {
    struct cst_segment segment; /* first member: the set's view of it */
    struct cst_job job;         /* populate, lock, import or unmap, on the lanes */
    struct cst_mail mail;       /* job is done */
    struct cst_device *device;  /* borrowed */
    struct cst_mailbox *box;    /* borrowed; knocked at after each piece */
    int fd;                /* owned while it is being added; -1 after, and where there is none */
    uint64_t request;      /* of the message that waits for an answer */
    uint64_t drop_request; /* of a SEGMENT_DROP that came while it is being added or used */
    uint64_t drop_after;   /* commands submitted before it: they come first */
    bool drop;             /* there is one */
    bool import;           /* it is the device's memory: no populate, no lock */
    bool made;             /* fd is the handle of what was made here */
    bool populate;         /* touch every page */
    bool lock;             /* keep it from being paged out */
    struct cst_err note;   /* what could not be had and is not fatal; status 0: all was had */
    struct cst_err err;    /* the first failure's words; one writer: who set failed */
    atomic_bool failed;    /* pieces that follow do nothing */
    _Atomic uint64_t populated; /* bytes */
    atomic_ulong *progress;     /* borrowed: the watchdog's counter */
    uint64_t reported;          /* bytes told in PROGRESS; loop thread */
};

/* Map segment mapping->segment.id, of @bytes, from mapping->fd, for NUMA node @node (-1: any); the
 * device's memory is left to the lanes. The fields from device to lock but request and drop have
 * been set. CST_EINVAL: the fd or the size is wrong; CST_ENOMEM. Loop thread. */
int cst_mapping_open(struct cst_mapping *mapping, uint64_t bytes, int node, struct cst_err *err);

/* Is there anything for the lanes to do? Else it is ready as it is. */
bool cst_mapping_has_work(const struct cst_mapping *mapping);

/* Give that to @lanes; the mail comes when it is done, and mapping->failed says how it went. */
void cst_mapping_populate(struct cst_mapping *mapping, struct cst_crew *lanes);

/* Give the unmapping to @lanes; nobody uses the segment. The mail comes when it is done. */
void cst_mapping_unmap(struct cst_mapping *mapping, struct cst_crew *lanes);

/* Make pieces that have not begun do nothing; the mail comes soon. Any thread. */
void cst_mapping_cancel(struct cst_mapping *mapping);

/* Close the fd. The segment stays mapped. */
void cst_mapping_close_fd(struct cst_mapping *mapping);

#endif
