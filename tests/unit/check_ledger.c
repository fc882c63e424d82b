/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/ledger/ledger_file: a ledger that was torn or damaged anywhere is read as it was
 * before, or is named, and never read as something else. */
#include "daemon/ledger/ledger_file.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct cst_err err;
static uint8_t *bytes; /* A ledger after its second record. */
static size_t n_bytes;
static uint32_t world; /* Ranks of its job. */
static bool spans;     /* The job is on two nodes. */

static struct cstd_ledger_record record_of(uint64_t step)
{
    struct cstd_ledger_record record;

    memset(&record, 0, sizeof record);
    record.core.counters.step = record.core.counters.adam_step = step;
    record.core.initialised = 1;
    return record;
}

static void make(struct cstd_ledger_file *file)
{
    Ledger__Job job = LEDGER__JOB__INIT;
    Ledger__Rank rank = LEDGER__RANK__INIT, *ranks[CST_CORE_MAX_WORLD];
    Ledger__Span span = LEDGER__SPAN__INIT;
    uint8_t description[] = "description";

    for (uint32_t r = 0; r < world; r++) {
        ranks[r] = &rank;
    }
    job.n_ranks = world;
    job.ranks = ranks;
    job.serial = 7;
    job.description.data = description;
    job.description.len = sizeof description;
    job.plan_words = (char *)(uintptr_t) "";
    span.token.data = description;
    span.token.len = sizeof description;
    job.span = spans ? &span : NULL;
    ck_assert_int_eq(cstd_ledger_file_make(file, &job, &err), CST_OK);
}

/* The record of the members after the @n-th change. */
static struct cstd_ledger_members members_of(uint64_t n)
{
    struct cstd_ledger_members members;

    memset(&members, 0, sizeof members);
    members.members.life = 77;
    members.members.epoch.number = n;
    members.lives[1] = 1000 + n;
    (void)strcpy(members.names[1], "b");
    return members;
}

/* Make `bytes`, of a job of @n ranks. */
static void setup_of(uint32_t n)
{
    struct cstd_ledger_file file;
    struct cstd_ledger_record first = record_of(1), second = record_of(2);
    struct cstd_ledger_members before = members_of(1), after = members_of(2);

    world = n;
    make(&file);
    cstd_ledger_file_write(&file, &first);
    cstd_ledger_file_write(&file, &second);
    if (spans) {
        cstd_ledger_file_write_members(&file, &before);
        cstd_ledger_file_write_members(&file, &after);
        cstd_ledger_file_write_members(&file, &after); /* Nothing changes. */
    }
    n_bytes = file.bytes;
    bytes = malloc(n_bytes);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, file.head, n_bytes);
    cstd_ledger_file_close(&file);
}

static void setup(void)
{
    setup_of(2);
}

static void setup_span(void)
{
    spans = true;
    setup_of(2);
}

static void setup_wide(void)
{
    setup_of(CST_CORE_MAX_WORLD);
}

static void teardown(void)
{
    free(bytes);
    spans = false;
}

/* Open the first @n of `bytes`. *step: that of the record. */
static int reopen(size_t n, uint64_t *step)
{
    struct cstd_ledger_file file;
    struct cstd_ledger_text description;
    Ledger__Job *job;
    int fd = memfd_create("ledger", MFD_CLOEXEC), rc;

    ck_assert_int_ge(fd, 0);
    ck_assert_uint_eq((size_t)write(fd, bytes, n), n);
    rc = cstd_ledger_file_open(&file, fd, &job, &description, &err);
    if (rc == CST_OK) {
        rc = cstd_ledger_file_check(&file, &err);
        *step = rc == CST_OK ? file.last.core.counters.step : 0;
        ck_assert(rc != CST_OK || job->serial == 7);
        ck_assert(rc != CST_OK || (description.n == sizeof "description" &&
                                   memcmp(description.bytes, "description", description.n) == 0));
        ledger__job__free_unpacked(job, NULL);
    }
    cstd_ledger_file_close(&file);
    return rc;
}

START_TEST(whole)
{
    uint64_t step;

    ck_assert_int_eq(reopen(n_bytes, &step), CST_OK);
    ck_assert_uint_eq(step, 2);
}
END_TEST

/* A word of ranks has a bit and a place for each of its ranks. Format 12, which earlier daemons
 * wrote, has one. */
static size_t record_bytes(void)
{
    return sizeof(struct cst_core_record) + 16 +
           (world > 64 ? CST_SET_WORDS : 1u) * (1 + 64) * sizeof(uint64_t);
}

/* With any byte changed, the ledger has its second record, or its first one, or is refused. A
 * change in the second record's place leads to the first one. */
START_TEST(damaged)
{
    unsigned n_first = 0, n_second = 0, n_refused = 0;

    for (size_t i = 0; i < n_bytes; i++) {
        uint64_t step = 0;
        int rc;

        bytes[i] ^= 0x10;
        rc = reopen(n_bytes, &step);
        bytes[i] ^= 0x10;
        ck_assert_msg(rc == CST_ELOST || rc == CST_EVERSION ||
                          (rc == CST_OK && step >= 1 && step <= 2),
                      "byte %zu: status %d, step %llu", i, rc, (unsigned long long)step);
        n_first += rc == CST_OK && step == 1;
        n_second += rc == CST_OK && step == 2;
        n_refused += rc != CST_OK;
    }
    /* Each record has as many bytes, with a number and a checksum; the rest is head and message. */
    ck_assert_uint_eq(n_first, n_second);
    ck_assert_uint_eq(n_first, record_bytes() + 16);
    ck_assert_uint_eq(n_refused, n_bytes - n_first - n_second);
}
END_TEST

START_TEST(cut)
{
    uint64_t step;

    for (size_t n = 0; n < n_bytes; n++) {
        ck_assert_int_eq(reopen(n, &step), CST_ELOST);
    }
}
END_TEST

/* The records are written in turns, so that the newest whole one is never touched. */
START_TEST(turns)
{
    struct cstd_ledger_file file, other;
    struct cstd_ledger_text description;
    Ledger__Job *job;

    make(&file);
    for (uint64_t step = 1; step < 20; step++) {
        struct cstd_ledger_record record = record_of(step);
        int fd = dup(file.fd);

        record.n_moved = (uint32_t)step;
        record.torn = step % 2;
        cst_set_add(&record.left, (uint32_t)(step * 997 % world));
        record.pools[step * 991 % world] = step;

        cstd_ledger_file_write(&file, &record);
        ck_assert_int_eq(cstd_ledger_file_open(&other, fd, &job, &description, &err), CST_OK);
        ck_assert_int_eq(memcmp(&other.last, &record, sizeof record), 0);
        ledger__job__free_unpacked(job, NULL);
        cstd_ledger_file_close(&other);
    }
    cstd_ledger_file_close(&file);
}
END_TEST

START_TEST(without_a_record)
{
    struct cstd_ledger_file file, other;
    struct cstd_ledger_text description;
    Ledger__Job *job;

    make(&file);
    ck_assert_int_eq(cstd_ledger_file_open(&other, dup(file.fd), &job, &description, &err),
                     CST_ELOST);
    ck_assert_ptr_nonnull(strstr(err.text, "no whole record"));
    cstd_ledger_file_close(&file);
}
END_TEST

/* The members' newest whole record in `bytes`: its number; 0: there is none, or no file. */
static uint64_t members_in(void)
{
    struct cstd_ledger_file file;
    struct cstd_ledger_text description;
    struct cstd_ledger_members members;
    Ledger__Job *job = NULL;
    int fd = memfd_create("ledger", MFD_CLOEXEC);
    uint64_t n = 0;

    ck_assert_int_ge(fd, 0);
    ck_assert_uint_eq((size_t)write(fd, bytes, n_bytes), n_bytes);
    if (cstd_ledger_file_open(&file, fd, &job, &description, &err) == CST_OK &&
        cstd_ledger_file_members(&file, &members, &err) == CST_OK) {
        const struct cstd_ledger_members wanted = members_of(members.members.epoch.number);

        ck_assert_int_eq(memcmp(&members, &wanted, sizeof wanted), 0);
        n = members.members.epoch.number;
    }
    ledger__job__free_unpacked(job, NULL);
    cstd_ledger_file_close(&file);
    return n;
}

/* With any byte changed, the members are those of the last change or of the one before, or they are
 * refused. */
START_TEST(members)
{
    unsigned n_first = 0, n_refused = 0;

    ck_assert_uint_eq(members_in(), 2);
    for (size_t i = 0; i < n_bytes; i++) {
        uint64_t n;

        bytes[i] ^= 0x10;
        n = members_in();
        bytes[i] ^= 0x10;
        ck_assert_uint_le(n, 2);
        n_first += n == 1;
        n_refused += n == 0;
    }
    ck_assert_uint_eq(n_first, sizeof(struct cstd_ledger_members) + 16);
    ck_assert_uint_lt(n_refused, 1000); /* Head and message. */
}
END_TEST

/* The ledger of a job on one node has none. */
START_TEST(no_members)
{
    ck_assert_uint_eq(members_in(), 0);
    ck_assert_ptr_nonnull(strstr(err.text, "no whole record of its nodes"));
}
END_TEST

static void add_all(TCase *tc)
{
    tcase_add_test(tc, whole);
    tcase_add_test(tc, damaged);
    tcase_add_test(tc, cut);
    tcase_add_test(tc, turns);
    tcase_add_test(tc, without_a_record);
}

int main(void)
{
    Suite *s = suite_create("ledger");

    add_all(suite_case(s, "file", setup, teardown));
    add_all(suite_case(s, "of many ranks", setup_wide, teardown));
    tcase_add_test(suite_case(s, "of two nodes", setup_span, teardown), members);
    tcase_add_test(suite_case(s, "of one node", setup, teardown), no_members);
    return suite_run(s);
}
