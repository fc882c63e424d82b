/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: connections that map the weights of a job and read versions of them (cistern/reader.h).
 * The core says which versions are readable (offload/update/versions.h). A reader asks for one,
 * holds it, reads, and asks whether it was readable all the time. It was, if no command that
 * overwrites it was given to an engine before the daemon answers. Readers hold no memory of their
 * own. Loop thread only. */
#ifndef CSTD_READERS_H
#define CSTD_READERS_H

#include "cistern/status.h"
#include "proto/table.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct cstd_job;
struct cstd_pending;
struct cstd_session;

enum { CSTD_READER_HOLDS = 4 }; /* Versions that a reader can hold at once. */

/* A version that a reader holds, or did until it was revoked. */
struct cstd_reader_hold {
    uint64_t number; /* As the reader knows it; 0: the place is free. */
    uint64_t step;
    uint32_t row;
    bool keeps; /* The core knows that the row is kept. */
    bool lost;  /* The version is not readable any more. */
};

struct cstd_reader {
    TAILQ_ENTRY(cstd_reader) link;
    struct cstd_session *session;
    struct cstd_job *job;
    uint64_t last; /* Number of the last hold. */
    struct cstd_reader_hold holds[CSTD_READER_HOLDS];
    struct cstd_pending *next; /* The request that waits for a version; NULL: none. */
    bool has_after, keep;      /* What it has asked for. */
    uint64_t after;
};

struct cstd_readers {
    TAILQ_HEAD(, cstd_reader) list;
    uint32_t n;
    struct {
        bool readable;
        uint64_t step;
    } rows[CST_MAX_VERSIONS];
    uint64_t n_lost; /* Versions that readers have lost. */
};

void cstd_readers_init(struct cstd_readers *readers);

/* @session, which reads no job, reads @job from now on. CST_ENOMEM. */
int cstd_readers_add(struct cstd_job *job, struct cstd_session *session, struct cst_err *err);

/* Answer @request of a reader when there is a version of a step after @after (@has_after), or any.
 * CST_EBUSY: the reader waits already, or holds as many versions as it can. */
int cstd_readers_next(struct cstd_reader *reader, struct cstd_pending *request, bool has_after,
                      uint64_t after, bool keep, struct cst_err *err);

/* CST_OK: the version @number is readable. CST_ESTALE: it is not any more. CST_EINVAL: @reader does
 * not hold it. */
int cstd_readers_check(struct cstd_reader *reader, uint64_t number, struct cst_err *err);

/* @reader holds the version @number no more. CST_EINVAL: it did not. */
int cstd_readers_release(struct cstd_reader *reader, uint64_t number, struct cst_err *err);

/* The core of @job says that the version of @step is readable in @row, or that what is there is not
 * any more. */
void cstd_readers_version(struct cstd_job *job, uint32_t row, uint64_t step);
void cstd_readers_revoke(struct cstd_job *job, uint32_t row);

/* Answer readers that wait and need not any more. Called at the end of an event of the core,
 * because it can make another event. */
void cstd_readers_look(struct cstd_job *job);

/* All readers of @job lose it: they are told @why. */
void cstd_readers_end(struct cstd_job *job, const struct cst_err *why);

/* @session ends: it reads nothing any more. */
void cstd_readers_gone(struct cstd_session *session);

#endif
