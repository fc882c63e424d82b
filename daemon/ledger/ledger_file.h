/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of a job: a memfd from which another daemon can go on with the job. It has
 *
 *   | header | record | record | members | members | message of ledger.proto |
 *
 * The message says what the job is and does not change. A record says how far the job is, and that
 * of the members, which a job on several nodes has, who they are. Each is there twice, so that one
 * is whole whenever the daemon is killed (twin.h). Knows nothing of jobs and of the loop. */
#ifndef CSTD_LEDGER_FILE_H
#define CSTD_LEDGER_FILE_H

#include "offload/base/machines.h"
#include "offload/core/revival.h"
#include "offload/machines/members.h"
#include "proto/job_name.h"
#include "proto/ledger.pb-c.h"

/* Increased whenever the header, the records, or the meaning of the message change. A job of at
 * most CST_SET_WORD ranks has the first format, whose records are smaller. A ledger with members
 * has one of those formats plus CSTD_LEDGER_FORMAT_MEMBERS. */
enum { CSTD_LEDGER_FORMAT = 14, CSTD_LEDGER_FORMAT_WIDE = 15, CSTD_LEDGER_FORMAT_MEMBERS = 2 };

struct cstd_ledger_head; /* private: one file */

/* How far a job is. All bytes are set. */
struct cstd_ledger_record {
    struct cst_core_record core;
    struct cst_set left; /* Ranks whose last worker left in good order. */
    /* Where the pool of each rank is, which can move (daemon/job/relocate.h): the hash of an
     * accelerator's UUID (cstd_ledger_hash_uuid); 0: on the host. */
    uint64_t pools[CST_CORE_MAX_WORLD];
    /* A move in progress of the states of the job that this one replaces (daemon/job/migrate.h):
     * portions that have moved, of n_portions. 0: there is none, and the job has all its states. */
    uint32_t n_moved, n_portions;
    /* 1: the states of this job are being moved to the job that replaces it, and the pages of some
     * were given back. Without that job it cannot go on. */
    uint16_t torn;
    uint16_t pause;          /* 1: the job is paused; 2: its pools are released, too. */
    uint32_t paused_since_s; /* When it was paused, in seconds since 1970; 0: it is not. */
};

/* The parts of a job on several nodes (daemon/job/span.h). There is no padding. */
struct cstd_ledger_members {
    struct cst_members_record members;
    uint64_t lives[CST_MACHINES_MAX];                 /* Of the parts. */
    char names[CST_MACHINES_MAX][CST_JOB_NAME_BYTES]; /* Of their nodes; 0 to the end. */
};

struct cstd_ledger_file {
    int fd;                         /* -1: closed. */
    struct cstd_ledger_head *head;  /* The mapped file. */
    size_t bytes;                   /* Size of the file. */
    uint32_t n_words;               /* Words of a set of ranks in its records. */
    bool has_members;               /* The job is on several nodes. */
    struct cstd_ledger_record last; /* The record that was written last. */
};

/* Make the file with @job and no record. CST_ENOMEM. */
int cstd_ledger_file_make(struct cstd_ledger_file *file, const Ledger__Job *job,
                          struct cst_err *err);

/* Write @record, if it differs from the last one. */
void cstd_ledger_file_write(struct cstd_ledger_file *file, const struct cstd_ledger_record *record);

/* Write @record, if it differs from the last one of the members. The file has members. */
void cstd_ledger_file_write_members(struct cstd_ledger_file *file,
                                    const struct cstd_ledger_members *record);

/* Read the newest whole record of the members. CST_ELOST: there is none. */
int cstd_ledger_file_members(const struct cstd_ledger_file *file, struct cstd_ledger_members *out,
                             struct cst_err *err);

/* A part of a mapped ledger. */
struct cstd_ledger_text {
    const uint8_t *bytes;
    size_t n;
};

/* Open the file @fd that an earlier daemon wrote; @file owns @fd, on failure too. Only a small part
 * of a large file is read. *job is the message without its description, and is freed by the caller.
 * *description, a packed JobDescription, is valid until the file is closed. file->last is the
 * newest whole record. CST_EVERSION: it has another format. CST_ELOST: it is damaged. CST_ENOMEM.
 */
int cstd_ledger_file_open(struct cstd_ledger_file *file, int fd, Ledger__Job **job,
                          struct cstd_ledger_text *description, struct cst_err *err);

/* Check the whole message. CST_ELOST: it is damaged. Any thread. */
int cstd_ledger_file_check(const struct cstd_ledger_file *file, struct cst_err *err);

/* Read the newest whole record into file->last again: another daemon has gone on writing.
 * CST_ELOST: there is none. */
int cstd_ledger_file_renew(struct cstd_ledger_file *file, struct cst_err *err);

void cstd_ledger_file_close(struct cstd_ledger_file *file);

#endif
