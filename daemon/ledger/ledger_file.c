/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/ledger_file.h"

#include "daemon/session/packed.h"

#include "proto/fallocate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC 0x316567644c545343ull /* "CSTLdge1" */

/* A record in the file is
 *
 *   | number | core | left: n_words | pools: 64 x n_words | rest | checksum |
 *
 * of 64-bit words, where the checksum is XXH3 of all before it. Number 0: it was never written. */
enum { POOLS_OF_WORD = CST_SET_WORD };

/* The end of a record before its checksum. */
struct rest {
    uint32_t n_moved, n_portions;
    uint64_t torn;
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
    uint32_t entry_bytes;   /* Size of a record with number and checksum. */
    uint64_t message_bytes; /* Size of the packed message, which follows the two records. */
    uint64_t checksum;      /* XXH3 of the message. */
};

/* The words of a set of ranks in the ledger of a job of @world ranks, which decide its format. */
static uint32_t words_of(size_t world)
{
    return world <= CST_SET_WORD ? 1 : CST_SET_WORDS;
}

static uint32_t format_of(uint32_t n_words)
{
    return n_words == 1 ? CSTD_LEDGER_FORMAT : CSTD_LEDGER_FORMAT_WIDE;
}

static size_t record_bytes(uint32_t n_words)
{
    return sizeof(struct cst_core_record) + n_words * (1 + POOLS_OF_WORD) * sizeof(uint64_t) +
           sizeof(struct rest);
}

static size_t entry_bytes(uint32_t n_words)
{
    return sizeof(uint64_t) + record_bytes(n_words) + sizeof(uint64_t);
}

/* What comes before the message. */
static size_t head_bytes(uint32_t n_words)
{
    return sizeof(struct cstd_ledger_head) + 2 * entry_bytes(n_words);
}

static uint8_t *message_of(struct cstd_ledger_head *head)
{
    return (uint8_t *)(head + 1) + 2 * (size_t)head->entry_bytes;
}

/* Entry @i, and its checksum. */
static uint64_t *entry_at(struct cstd_ledger_head *head, unsigned i)
{
    return (uint64_t *)((uint8_t *)(head + 1) + i * (size_t)head->entry_bytes);
}

static uint64_t *checksum_at(const struct cstd_ledger_head *head, uint64_t *entry)
{
    return entry + head->entry_bytes / sizeof *entry - 1;
}

static uint64_t checksum_of(const struct cstd_ledger_head *head, const uint64_t *entry)
{
    return XXH3_64bits(entry, head->entry_bytes - sizeof *entry);
}

/* Write @record to @out, of record_bytes(). */
static void encode(const struct cstd_ledger_record *record, uint32_t n_words, uint8_t *out)
{
    const struct rest rest = {record->n_moved, record->n_portions, record->torn};
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
}

int cstd_ledger_file_make(struct cstd_ledger_file *file, const Ledger__Job *job,
                          struct cst_err *err)
{
    const uint32_t n_words = words_of(job->n_ranks);
    size_t n = ledger__job__get_packed_size(job), bytes = head_bytes(n_words) + n;
    int saved;

    *file = (struct cstd_ledger_file){
        .fd = memfd_create("cistern-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING),
        .bytes = bytes,
        .n_words = n_words};
    /* Memory that exists from now on, and a size that nobody can change. */
    if (file->fd < 0 || cst_fallocate(file->fd, 0, 0, bytes) != 0 || fchmod(file->fd, 0600) != 0 ||
        fcntl(file->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        goto err_after_open;
    }
    file->head = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (file->head == MAP_FAILED) {
        file->head = NULL;
        goto err_after_open;
    }
    file->head->magic = MAGIC;
    file->head->format = format_of(n_words);
    file->head->entry_bytes = (uint32_t)entry_bytes(n_words);
    file->head->message_bytes = n;
    (void)ledger__job__pack(job, message_of(file->head));
    file->head->checksum = XXH3_64bits(message_of(file->head), n);
    return CST_OK;

err_after_open:
    saved = errno;
    cstd_ledger_file_close(file);
    return cst_err_errno(err, CST_ENOMEM, saved, "a ledger of %zu bytes", bytes);
}

static bool is_whole(const struct cstd_ledger_head *head, uint64_t *entry)
{
    return entry[0] != 0 && *checksum_at(head, entry) == checksum_of(head, entry);
}

/* The entry that was written last; NULL: there is none. */
static uint64_t *newest(struct cstd_ledger_head *head)
{
    uint64_t *best = NULL;

    for (unsigned i = 0; i < 2; i++) {
        uint64_t *entry = entry_at(head, i);

        if (is_whole(head, entry) && (best == NULL || entry[0] > best[0])) {
            best = entry;
        }
    }
    return best;
}

void cstd_ledger_file_write(struct cstd_ledger_file *file, const struct cstd_ledger_record *record)
{
    uint8_t bytes[MAX_RECORD];
    uint64_t *last, *to, number;

    if (memcmp(&file->last, record, sizeof *record) == 0) {
        return;
    }
    last = newest(file->head);
    number = last != NULL ? last[0] + 1 : 1;
    to = entry_at(file->head, number % 2);
    file->last = *record;
    encode(record, file->n_words, bytes);
    /* A killed process stops between two instructions, with all earlier stores made. The order of
     * the stores is therefore a matter of the compiler alone. */
    *checksum_at(file->head, to) = 0;
    atomic_signal_fence(memory_order_seq_cst);
    to[0] = number;
    memcpy(to + 1, bytes, record_bytes(file->n_words));
    atomic_signal_fence(memory_order_seq_cst);
    *checksum_at(file->head, to) = checksum_of(file->head, to);
    atomic_signal_fence(memory_order_seq_cst);
}

/* Map the file, and check what must be right before its members are read. */
static int map(struct cstd_ledger_file *file, struct cst_err *err)
{
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
    file->n_words = file->head->format == CSTD_LEDGER_FORMAT ? 1 : CST_SET_WORDS;
    if (file->head->format != format_of(file->n_words) ||
        file->head->entry_bytes != entry_bytes(file->n_words)) {
        return cst_err_set(err, CST_EVERSION,
                           "its ledger has format %u, and this daemon reads the formats %d and %d",
                           file->head->format, CSTD_LEDGER_FORMAT, CSTD_LEDGER_FORMAT_WIDE);
    }
    return file->bytes >= head_bytes(file->n_words) &&
                   file->head->message_bytes == file->bytes - head_bytes(file->n_words)
               ? CST_OK
               : cst_err_set(err, CST_ELOST, "its ledger is damaged");
}

/* Unpack the message with an empty description. NULL: it is damaged, or there is no memory. *out:
 * the description, in the file. */
static Ledger__Job *unpack(struct cstd_ledger_head *head, struct cstd_ledger_text *out)
{
    struct cstd_packed rest = {.at = message_of(head),
                               .end = message_of(head) + head->message_bytes};
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
    n_before = (size_t)(begin - message_of(head));
    n = n_before + sizeof empty_description + (size_t)(rest.end - end);
    brief = malloc(n);
    if (brief != NULL) {
        memcpy(brief, message_of(head), n_before);
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
    const uint64_t *entry = NULL;
    int rc;

    *file = (struct cstd_ledger_file){.fd = fd};
    *job = NULL;
    rc = map(file, err);
    if (rc == CST_OK) {
        entry = newest(file->head);
        *job = unpack(file->head, description);
    }
    if (rc == CST_OK && (entry == NULL || *job == NULL)) {
        rc = cst_err_set(err, CST_ELOST, "its ledger has no %s",
                         entry == NULL ? "whole record" : "message");
    }
    if (rc != CST_OK) {
        ledger__job__free_unpacked(*job, NULL);
        *job = NULL;
        cstd_ledger_file_close(file);
        return rc;
    }
    decode((const uint8_t *)(entry + 1), file->n_words, &file->last);
    return CST_OK;
}

int cstd_ledger_file_check(const struct cstd_ledger_file *file, struct cst_err *err)
{
    struct cstd_ledger_head *head = file->head;

    return XXH3_64bits(message_of(head), head->message_bytes) == head->checksum
               ? CST_OK
               : cst_err_set(err, CST_ELOST, "its ledger is damaged");
}

int cstd_ledger_file_renew(struct cstd_ledger_file *file, struct cst_err *err)
{
    const uint64_t *entry = newest(file->head);

    if (entry == NULL) {
        return cst_err_set(err, CST_ELOST, "its ledger has no whole record");
    }
    decode((const uint8_t *)(entry + 1), file->n_words, &file->last);
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
