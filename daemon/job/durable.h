/* SPDX-License-Identifier: Apache-2.0 */
/* Seals of durable jobs: the engines of the drives flush the job's files, write the record of the
 * last step and flush it (proto/durable.h). The first time, they also write the weights that no
 * update has written, and what describes the job.
 * The daemon makes what is written, and the order; it does no I/O on the files. Loop thread only.
 *
 * A seal is a sequence of phases. Each one gives commands to engines, and the next one begins when
 * all of them are done. So the files of all drives are flushed before the record is written. */
#ifndef CSTD_DURABLE_H
#define CSTD_DURABLE_H

#include "cistern/status.h"
#include "proto/durable.h"

#include <stdbool.h>

struct cstd_durable_describing;
struct cstd_job;

/* All 0: nothing is under way. */
struct cstd_durable {
    unsigned phase;     /* Number of the phase under way, in the table of durable.c. */
    unsigned n_pending; /* Commands of the phase, and a thread, that have not ended. */
    struct cst_err err; /* The first error of the seal under way; status 0: there was none. */
    uint64_t n_tickets; /* Commands so far. */
    /* While weights are written, the number of the command that writes those of chunk 0, if it has
     * some, and so on; else 0. */
    uint64_t first_weights;
    /* A thread reads the job to describe it: until it is over, the job must not be freed. NULL:
     * there is none. */
    struct cstd_durable_describing *describing;
    bool described;                   /* The files say what they are. */
    bool sealed;                      /* The seal under way: its record is on the drives already. */
    bool unnamed;                     /* The log says that a file has no name any more. */
    uint8_t id[CST_DURABLE_ID_BYTES]; /* That of the files, if they are `described`. */
};

/* CST_EINVAL: the job is to be durable, and something of it that steps change, or that nobody could
 * make again, would not be in its files. @err names the tensor and what to do. Needs the layout. */
int cstd_durable_check(const struct cstd_job *job, struct cst_err *err);

/* Carry out CST_ACT_SEAL: CST_EV_SEALED follows, never within this call. CST_ENOMEM: it does not
 * follow. */
int cstd_durable_seal(struct cstd_job *job, struct cst_err *err);

/* True if the command with this ticket, of any job, is one of a seal, and not of a core. */
bool cstd_durable_is_ticket(uint64_t ticket);

/* A command of a seal of @job has ended. @value: the checksum of what it has copied. @text: words
 * for a status other than CST_OK, or NULL. */
void cstd_durable_done(struct cstd_job *job, uint64_t ticket, int status, double value,
                       const char *text);

/* The core of @job, which is READY, has moved on: workers leave, and saves begin, that have waited
 * for a seal. */
void cstd_durable_look(struct cstd_job *job);

#endif
