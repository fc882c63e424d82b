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

/* A record in the file. Number 0: it was never written. */
struct entry {
    uint64_t number;
    struct cstd_ledger_record record;
    uint64_t checksum; /* XXH3 of the members above. */
};

/* The field of ledger.Job with the description, and the field without one. */
enum { DESCRIPTION = 4 };
static const uint8_t empty_description[] = {DESCRIPTION << 3 | 2, 0};

struct cstd_ledger_head {
    uint64_t magic;
    uint32_t format;        /* CSTD_LEDGER_FORMAT */
    uint32_t entry_bytes;   /* sizeof(struct entry) */
    uint64_t message_bytes; /* Size of the packed message, which follows this structure. */
    uint64_t checksum;      /* XXH3 of the message. */
    struct entry entries[2];
};

static uint64_t checksum_of(const struct entry *entry)
{
    return XXH3_64bits(entry, offsetof(struct entry, checksum));
}

static uint8_t *message_of(struct cstd_ledger_head *head)
{
    return (uint8_t *)(head + 1);
}

int cstd_ledger_file_make(struct cstd_ledger_file *file, const Ledger__Job *job,
                          struct cst_err *err)
{
    size_t n = ledger__job__get_packed_size(job), bytes = sizeof *file->head + n;
    int saved;

    *file = (struct cstd_ledger_file){
        .fd = memfd_create("cistern-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING), .bytes = bytes};
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
    file->head->format = CSTD_LEDGER_FORMAT;
    file->head->entry_bytes = sizeof(struct entry);
    file->head->message_bytes = n;
    (void)ledger__job__pack(job, message_of(file->head));
    file->head->checksum = XXH3_64bits(message_of(file->head), n);
    return CST_OK;

err_after_open:
    saved = errno;
    cstd_ledger_file_close(file);
    return cst_err_errno(err, CST_ENOMEM, saved, "a ledger of %zu bytes", bytes);
}

static bool is_whole(const struct entry *entry)
{
    return entry->number != 0 && entry->checksum == checksum_of(entry);
}

/* The entry that was written last; NULL: there is none. */
static struct entry *newest(struct cstd_ledger_head *head)
{
    struct entry *best = NULL;

    for (unsigned i = 0; i < 2; i++) {
        struct entry *entry = &head->entries[i];

        if (is_whole(entry) && (best == NULL || entry->number > best->number)) {
            best = entry;
        }
    }
    return best;
}

void cstd_ledger_file_write(struct cstd_ledger_file *file, const struct cstd_ledger_record *record)
{
    struct entry *last, *to;
    uint64_t number;

    if (memcmp(&file->last, record, sizeof *record) == 0) {
        return;
    }
    last = newest(file->head);
    number = last != NULL ? last->number + 1 : 1;
    to = &file->head->entries[number % 2];
    file->last = *record;
    /* A killed process stops between two instructions, with all earlier stores made. The order of
     * the stores is therefore a matter of the compiler alone. */
    to->checksum = 0;
    atomic_signal_fence(memory_order_seq_cst);
    to->number = number;
    to->record = *record;
    atomic_signal_fence(memory_order_seq_cst);
    to->checksum = checksum_of(to);
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
    if (file->head->format != CSTD_LEDGER_FORMAT ||
        file->head->entry_bytes != sizeof(struct entry)) {
        return cst_err_set(err, CST_EVERSION,
                           "its ledger has format %u, and this daemon reads format %d",
                           file->head->format, CSTD_LEDGER_FORMAT);
    }
    return file->head->message_bytes == file->bytes - sizeof *file->head
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
    const struct entry *entry = NULL;
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
    file->last = entry->record;
    return CST_OK;
}

int cstd_ledger_file_check(const struct cstd_ledger_file *file, struct cst_err *err)
{
    const struct cstd_ledger_head *head = file->head;

    return XXH3_64bits(head + 1, head->message_bytes) == head->checksum
               ? CST_OK
               : cst_err_set(err, CST_ELOST, "its ledger is damaged");
}

int cstd_ledger_file_renew(struct cstd_ledger_file *file, struct cst_err *err)
{
    const struct entry *entry = newest(file->head);

    if (entry == NULL) {
        return cst_err_set(err, CST_ELOST, "its ledger has no whole record");
    }
    file->last = entry->record;
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
