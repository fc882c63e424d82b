/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a durable job's files that have no rows of states (proto/durable.h), as segments of
 * the drives' engines, and the host memory through which the daemon reads and writes them. The
 * engines take the space of these parts when the job is committed. A part of struct cstd_memory:
 * the job's memory is ready when these segments are, too. Loop thread only.
 *
 *   buffer   what the beginning of file 0 had | seal | head of file 0 | head of file 1 ... |
 * description
 */
#ifndef CSTD_RECORDS_H
#define CSTD_RECORDS_H

#include "cistern/status.h"
#include "offload/layout/layout.h"
#include "proto/durable.h"

struct cstd_memory;
struct cstd_memory_request;
struct cstd_segment;

/* All 0: the job is not durable, or has no memory. */
struct cstd_records {
    uint32_t n_files;
    uint32_t engines[CST_LAYOUT_MAX_DEVICES]; /* Number of the engine of each file's drive. */
    /* Of each file, its beginning up to the first row. */
    struct cstd_segment *starts[CST_LAYOUT_MAX_DEVICES];
    /* The place behind the rows of file 0. NULL: an earlier daemon has left none. */
    struct cstd_segment *description;
    struct cstd_segment *buffer; /* Charged with the job's upkeep. NULL: the job is not durable. */
    char *at;                    /* The buffer, mapped. */
    uint64_t start_bytes;        /* Bytes of each of `starts`. */
    uint64_t seal_bytes;         /* Bytes of a seal's place. */
    uint64_t description_bytes;  /* Bytes for a description in the buffer. */
};

/* Offsets in the buffer. */
static inline uint64_t cstd_records_seal(const struct cstd_records *records)
{
    return records->start_bytes;
}

static inline uint64_t cstd_records_head(const struct cstd_records *records, uint32_t file)
{
    return cstd_records_seal(records) + records->seal_bytes + (uint64_t)file * CST_DURABLE_BLOCK;
}

static inline uint64_t cstd_records_text(const struct cstd_records *records)
{
    return cstd_records_head(records, records->n_files);
}

/* Bytes of the buffer of a job of @layout with states in @n_files files and a description of at
 * most @description_bytes. */
uint64_t cstd_records_buffer_bytes(const struct cst_layout *layout, uint32_t n_files,
                                   uint64_t description_bytes);

/* The number of the file on the drive of engine @engine; n_files: there is none. */
uint32_t cstd_records_file(const struct cstd_records *records, uint32_t engine);

/* Make the segments that @request needs, after the arenas of @memory. After a failure the caller
 * calls cstd_records_undo. CST_EBUDGET, CST_ENOMEM. */
int cstd_records_open(struct cstd_memory *memory, const struct cstd_memory_request *request,
                      struct cst_err *err);

/* Free the segments, which no engine maps. */
void cstd_records_undo(struct cstd_records *records);

/* Let the engines map the segments. An error is that of @memory, as of its other segments. */
void cstd_records_mount(struct cstd_memory *memory);

/* Release the segments. on_gone of @memory follows when they are gone. */
void cstd_records_close(struct cstd_memory *memory);

#endif
