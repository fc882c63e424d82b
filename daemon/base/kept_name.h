/* SPDX-License-Identifier: Apache-2.0 */
/* Names of descriptors in the service manager's store: what each of them belongs to.
 *
 * systemd passes all names in one environment string, which the kernel limits to 128 KiB. A name is
 * therefore a sign and one to three numbers to the base 62: "+4c" is host memory of job 260. Names
 * of sockets begin with a letter. Earlier daemons wrote long names, such as "kept-job-260"; they
 * are still read, and daemons hand jobs over to each other under these. */
#ifndef CSTD_KEPT_NAME_H
#define CSTD_KEPT_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Enough for every name. */
#define CSTD_KEPT_NAME_BYTES 64

enum cstd_kept_kind {
    CSTD_KEPT_UNKNOWN, /* A later version has made it. */
    CSTD_KEPT_LEDGER,  /* The ledger of job `serial`. */
    CSTD_KEPT_HOST,    /* A segment in host memory of job `serial`; all have one name. */
    CSTD_KEPT_DEVICE,  /* Segment `i` in the ledger of job `serial`, on an accelerator. */
    CSTD_KEPT_SLAB,    /* Slab `k` of the pool of rank `i` of job `serial`. */
    CSTD_KEPT_TRAFFIC, /* The table of traffic, segment `k`. */
    CSTD_KEPT_UNDO,    /* The undo slots of the engine of node `i`, segment `k`. */
};

struct cstd_kept_name {
    enum cstd_kept_kind kind;
    uint32_t i, k;   /* 0, unless the kind has them. */
    uint64_t serial; /* 0: it is of no job. */
};

/* True if @text is the name of a stored descriptor, even if it cannot be read. */
bool cstd_kept_name_is_one(const char *text);

/* Read @text into *out. *is_long: it is a long name. False: it cannot be read, and *out is UNKNOWN.
 */
bool cstd_kept_name_read(const char *text, struct cstd_kept_name *out, bool *is_long);

/* Write @name, which is not UNKNOWN, to @out, which it returns. */
const char *cstd_kept_name_write(const struct cstd_kept_name *name, bool is_long,
                                 char out[CSTD_KEPT_NAME_BYTES]);

bool cstd_kept_name_same(const struct cstd_kept_name *a, const struct cstd_kept_name *b);

#endif
