/* SPDX-License-Identifier: Apache-2.0 */
/* The file with the machines that this machine trusts, one per line:
 *
 *   NAME HOST[:PORT] IDENTITY [drained]
 *
 * IDENTITY is "sha256:" and the fingerprint of the machine's certificate, or "ca": its certificate
 * has the name NAME, and an authority of the site has signed it. Empty lines, and lines that begin
 * with
 * #, are comments. No state; loop thread only. */
#ifndef CSTD_MACHINE_LIST_H
#define CSTD_MACHINE_LIST_H

#include "daemon/links/machine_address.h"
#include "proto/certificate.h"
#include "proto/job_name.h"

#define CSTD_MACHINES_MAX 64 /* Most machines besides this one. */
#define CSTD_MACHINE_CA                                                                            \
    "ca" /* Identity of a machine whose certificate an authority vouches for.                      \
          */

struct cstd_machine_entry {
    char name[CST_JOB_NAME_BYTES];
    char address[CSTD_MACHINE_ADDRESS_BYTES];
    char identity[CST_FINGERPRINT_BYTES];
    bool drained; /* There is to be no link to the machine. */
};

struct cstd_machine_list {
    struct cstd_machine_entry v[CSTD_MACHINES_MAX];
    unsigned n;
};

/* Make an entry, whose parts are checked. CST_EINVAL: one of them has another form. */
int cstd_machine_entry_make(struct cstd_machine_entry *out, const char *name, const char *address,
                            const char *identity, struct cst_err *err);

/* Return the entry of the machine @name; NULL: there is none. */
struct cstd_machine_entry *cstd_machine_list_find(struct cstd_machine_list *list, const char *name);

/* Read the file @path; one that does not exist is empty. CST_EINVAL: a line is wrong, "FILE:LINE:
 * ..."; CST_EIO: it cannot be read. On failure *out is undefined. */
int cstd_machine_list_read(struct cstd_machine_list *out, const char *path, struct cst_err *err);

/* Write the file @path again with the line @entry in place of that of the machine @name, or after
 * the others; @entry NULL: without it. Comments and other lines stay as they are. The new file
 * takes the old one's place when it is whole. CST_EIO; CST_ENOMEM. */
int cstd_machine_list_change(const char *path, const char *name,
                             const struct cstd_machine_entry *entry, struct cst_err *err);

#endif
