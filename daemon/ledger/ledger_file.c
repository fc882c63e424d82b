/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/ledger_file.h"

#include "daemon/ledger/twin.h"
#include "daemon/session/packed.h"

#include "proto/fallocate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC 0x316567644c545343ull /* "CSTLdge1" */

/* A record is
 *
 *   | core | left: n_words | pools: 64 x n_words | rest |
 *
 * of 64-bit words. */
enum { POOLS_OF_WORD = CST_SET_WORD };

/* The end of a record before its checksum. */
struct rest {
    uint32_t n_moved, n_portions;
    uint16_t torn, pause;
    uint32_t paused_since_s;
};

#define MAX_RECORD                                                                                 \
    (sizeof(struct cst_core_record) + CST_SET_WORDS * (1 + POOLS_OF_WORD) * sizeof(uint64_t) +     \
     sizeof(struct rest))

/* The field of ledger.Job with the description, and the field without one. */
enum { DESCRIPTION = 4 };
static const uint8_t empty_description[] = {DESCRIPTION << 3 | 2, 0};

struct cstd_ledger_head {
    uint64_t magic;
    uint32_t format;
    uint32_t entry_bytes;   /* Size of a record with number and checksum (twin.h). */
    uint64_t message_bytes; /* Size of the packed message, which is the end of the file. */
    uint64_t checksum;      /* XXH3 of the message. */
};

/* The words of a set of ranks in the ledger of a job of @world ranks, which decide its format. */
static uint32_t words_of(size_t world)
{
    return world <= CST_SET_WORD ? 1 : CST_SET_WORDS;
}

static uint32_t format_of(uint32_t n_words, bool members)
{
    return (n_words == 1 ? (uint32_t)CSTD_LEDGER_FORMAT : (uint32_t)CSTD_LEDGER_FORMAT_WIDE) +
           (members ? (uint32_t)CSTD_LEDGER_FORMAT_MEMBERS : 0);
}

static size_t record_bytes(uint32_t n_words)
{
    return sizeof(struct cst_core_record) + n_words * (1 + POOLS_OF_WORD) * sizeof(uint64_t) +
           sizeof(struct rest);
}

/* The records of the job's core, and those of its members. While the file is not mapped, only their
 * sizes are set. */
static struct cstd_twin twin_of(const struct cstd_ledger_file *file)
{
    return (struct cstd_twin){.at = file->head != NULL ? (uint64_t *)(file->head + 1) : NULL,
                              .bytes = record_bytes(file->n_words)};
}

static struct cstd_twin members_of(const struct cstd_ledger_file *file)
{
    const struct cstd_twin before = twin_of(file);

    return (struct cstd_twin){
        .at = before.at != NULL ? before.at + cstd_twin_bytes(&before) / sizeof *before.at : NULL,
        .bytes = sizeof(struct cstd_ledger_members)};
}

/* What comes before the message. */
static size_t head_bytes(const struct cstd_ledger_file *file)
{
    const struct cstd_twin records = twin_of(file), members = members_of(file);

    return sizeof(struct cstd_ledger_head) + cstd_twin_bytes(&records) +
           (file->has_members ? cstd_twin_bytes(&members) : 0);
}

static uint8_t *message_of(const struct cstd_ledger_file *file)
{
    return (uint8_t *)file->head + head_bytes(file);
}

/* Write @record to @out, of record_bytes(). */
static void encode(const struct cstd_ledger_record *record, uint32_t n_words, uint8_t *out)
{
    const struct rest rest = {record->n_moved, record->n_portions, record->torn, record->pause,
                              record->paused_since_s};
    const size_t n_left = n_words * sizeof *record->left.words,
                 n_pools = n_words * POOLS_OF_WORD * sizeof *record->pools;

    memcpy(out, &record->core, sizeof record->core);
    out += sizeof record->core;
    memcpy(out, record->left.words, n_left);
    memcpy(out + n_left, record->pools, n_pools);
    memcpy(out + n_left + n_pools, &rest, sizeof rest);
}

static void decode(const uint8_t *in, uint32_t n_words, struct cstd_ledger_record *record)
{
    const size_t n_left = n_words * sizeof *record->left.words,
                 n_pools = n_words * POOLS_OF_WORD * sizeof *record->pools;
    struct rest rest;

    memset(record, 0, sizeof *record);
    memcpy(&record->core, in, sizeof record->core);
    in += sizeof record->core;
    memcpy(record->left.words, in, n_left);
    memcpy(record->pools, in + n_left, n_pools);
    memcpy(&rest, in + n_left + n_pools, sizeof rest);
    record->n_moved = rest.n_moved;
    record->n_portions = rest.n_portions;
    record->torn = rest.torn;
    record->pause = rest.pause;
    record->paused_since_s = rest.paused_since_s;
}

int cstd_ledger_file_make(struct cstd_ledger_file *file, const Ledger__Job *job,
                          struct cst_err *err)
{
    const size_t n = ledger__job__get_packed_size(job);
    struct cstd_twin records;
    int saved;

    *file = (struct cstd_ledger_file){
        .fd = memfd_create("cistern-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING),
        .n_words = words_of(job->n_ranks),
        .has_members = job->span != NULL};
    file->bytes = head_bytes(file) + n;
    /* Memory that exists from now on, and a size that nobody can change. */
    if (file->fd < 0 || cst_fallocate(file->fd, 0, 0, file->bytes) != 0 ||
        fchmod(file->fd, 0600) != 0 ||
        fcntl(file->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        goto err_after_open;
    }
    file->head = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (file->head == MAP_FAILED) {
        file->head = NULL;
        goto err_after_open;
    }
    records = twin_of(file);
    file->head->magic = MAGIC;
    file->head->format = format_of(file->n_words, file->has_members);
    file->head->entry_bytes = (uint32_t)(cstd_twin_bytes(&records) / 2);
    file->head->message_bytes = n;
    (void)ledger__job__pack(job, message_of(file));
    file->head->checksum = XXH3_64bits(message_of(file), n);
    return CST_OK;

err_after_open:
    saved = errno;
    cstd_ledger_file_close(file);
    return cst_err_errno(err, CST_ENOMEM, saved, "a ledger of %zu bytes", file->bytes);
}

void cstd_ledger_file_write(struct cstd_ledger_file *file, const struct cstd_ledger_record *record)
{
    const struct cstd_twin records = twin_of(file);
    uint8_t bytes[MAX_RECORD];

    if (memcmp(&file->last, record, sizeof *record) == 0) {
        return;
    }
    file->last = *record;
    encode(record, file->n_words, bytes);
    cstd_twin_write(&records, bytes);
}

void cstd_ledger_file_write_members(struct cstd_ledger_file *file,
                                    const struct cstd_ledger_members *record)
{
    const struct cstd_twin members = members_of(file);
    const void *last = cstd_twin_newest(&members);

    if (last == NULL || memcmp(last, record, sizeof *record) != 0) {
        cstd_twin_write(&members, record);
    }
}

int cstd_ledger_file_members(const struct cstd_ledger_file *file, struct cstd_ledger_members *out,
                             struct cst_err *err)
{
    const struct cstd_twin members = members_of(file);
    const void *last = file->has_members ? cstd_twin_newest(&members) : NULL;

    if (last == NULL) {
        return cst_err_set(err, CST_ELOST, "its ledger has no whole record of its nodes");
    }
    memcpy(out, last, sizeof *out);
    return CST_OK;
}

/* Map the file, and check what must be right before its members are read. */
static int map(struct cstd_ledger_file *file, struct cst_err *err)
{
    struct cstd_twin records;
    struct stat st;

    if (fstat(file->fd, &st) != 0 || (size_t)st.st_size < sizeof *file->head) {
        return cst_err_set(err, CST_ELOST, "its ledger is cut off");
    }
    file->bytes = (size_t)st.st_size;
    file->head = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (file->head == MAP_FAILED) {
        file->head = NULL;
        return cst_err_errno(err, CST_ENOMEM, errno, "mapping its ledger");
    }
    if (file->head->magic != MAGIC) {
        return cst_err_set(err, CST_ELOST, "its ledger does not begin like one");
    }
    file->has_members = file->head->format >= CSTD_LEDGER_FORMAT + CSTD_LEDGER_FORMAT_MEMBERS;
    file->n_words = file->head->format == format_of(1, file->has_members) ? 1 : CST_SET_WORDS;
    records = twin_of(file);
    if (file->head->format != format_of(file->n_words, file->has_members) ||
        file->head->entry_bytes != cstd_twin_bytes(&records) / 2) {
        return cst_err_set(err, CST_EVERSION,
                           "its ledger has format %u, and this daemon reads the formats %d to %d",
                           file->head->format, CSTD_LEDGER_FORMAT,
                           CSTD_LEDGER_FORMAT_WIDE + CSTD_LEDGER_FORMAT_MEMBERS);
    }
    return file->bytes >= head_bytes(file) &&
                   file->head->message_bytes == file->bytes - head_bytes(file)
               ? CST_OK
               : cst_err_set(err, CST_ELOST, "its ledger is damaged");
}

/* Unpack the message with an empty description. NULL: it is damaged, or there is no memory. *out:
 * the description, in the file. */
static Ledger__Job *unpack(const struct cstd_ledger_file *file, struct cstd_ledger_text *out)
{
    const uint8_t *message = message_of(file);
    struct cstd_packed rest = {.at = message, .end = message + file->head->message_bytes};
    const uint8_t *begin = NULL, *end = NULL;
    struct cstd_packed_field field;
    Ledger__Job *job = NULL;
    uint8_t *brief;
    size_t n, n_before;

    while (cstd_packed_next(&rest, &field)) {
        if (field.number == DESCRIPTION) {
            *out = (struct cstd_ledger_text){.bytes = field.value, .n = field.n_value};
            begin = field.begin;
            end = rest.at;
        }
    }
    if (rest.at != rest.end || begin == NULL) {
        return NULL;
    }
    n_before = (size_t)(begin - message);
    n = n_before + sizeof empty_description + (size_t)(rest.end - end);
    brief = malloc(n);
    if (brief != NULL) {
        memcpy(brief, message, n_before);
        memcpy(brief + n_before, empty_description, sizeof empty_description);
        memcpy(brief + n_before + sizeof empty_description, end, (size_t)(rest.end - end));
        job = ledger__job__unpack(NULL, n, brief);
    }
    free(brief);
    return job;
}

int cstd_ledger_file_open(struct cstd_ledger_file *file, int fd, Ledger__Job **job,
                          struct cstd_ledger_text *description, struct cst_err *err)
{
    const void *record = NULL;
    struct cstd_twin records;
    int rc;

    *file = (struct cstd_ledger_file){.fd = fd};
    *job = NULL;
    rc = map(file, err);
    if (rc == CST_OK) {
        records = twin_of(file);
        record = cstd_twin_newest(&records);
        *job = unpack(file, description);
    }
    if (rc == CST_OK && (record == NULL || *job == NULL)) {
        rc = cst_err_set(err, CST_ELOST, "its ledger has no %s",
                         record == NULL ? "whole record" : "message");
    }
    if (rc == CST_OK && file->has_members != ((*job)->span != NULL)) {
        rc = cst_err_set(err, CST_ELOST, "its ledger is damaged");
    }
    if (rc != CST_OK) {
        ledger__job__free_unpacked(*job, NULL);
        *job = NULL;
        cstd_ledger_file_close(file);
        return rc;
    }
    decode(record, file->n_words, &file->last);
    return CST_OK;
}

int cstd_ledger_file_check(const struct cstd_ledger_file *file, struct cst_err *err)
{
    return XXH3_64bits(message_of(file), file->head->message_bytes) == file->head->checksum
               ? CST_OK
               : cst_err_set(err, CST_ELOST, "its ledger is damaged");
}

int cstd_ledger_file_renew(struct cstd_ledger_file *file, struct cst_err *err)
{
    const struct cstd_twin records = twin_of(file);
    const void *record = cstd_twin_newest(&records);

    if (record == NULL) {
        return cst_err_set(err, CST_ELOST, "its ledger has no whole record");
    }
    decode(record, file->n_words, &file->last);
    return CST_OK;
}

void cstd_ledger_file_close(struct cstd_ledger_file *file)
{
    if (file->head != NULL) {
        (void)munmap(file->head, file->bytes);
        file->head = NULL;
    }
    if (file->fd >= 0) {
        (void)close(file->fd);
        file->fd = -1;
    }
}
