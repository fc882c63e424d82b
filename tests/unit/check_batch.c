/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/session/batch: the hand-written code for Batch and BatchDone agrees with
 * protobuf-c.
 */
#include "daemon/session/batch.h"
#include "proto/cistern.pb-c.h"
#include "proto/frame.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct cstd_batch batch;
static struct cst_err err;

static void seed(void)
{
    unsigned n = (unsigned)getpid();

    printf("seed %u\n", n);
    srand(n);
}

static uint64_t any_number(void)
{
    uint64_t v = (uint64_t)rand() << 42 ^ (uint64_t)rand() << 21 ^ (uint64_t)rand();

    return v >> (rand() % 64);
}

/* Read an exact copy of the @n @bytes, so that a sanitizer detects a read beyond their end. */
static int read_exactly(const uint8_t *bytes, size_t n)
{
    uint8_t *copy = malloc(n > 0 ? n : 1);
    int rc;

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, bytes, n);
    rc = cstd_batch_read(&batch, copy, n, &err);
    free(copy);
    return rc;
}

struct message {
    Cistern__Batch batch;
    Cistern__BatchItem items[CSTD_PENDING_MAX_ITEMS];
    Cistern__BatchItem *pointers[CSTD_PENDING_MAX_ITEMS];
};

static size_t pack_random(struct message *m, uint8_t *out)
{
    cistern__batch__init(&m->batch);
    m->batch.attempt = any_number();
    m->batch.n_items = (size_t)rand() % (CSTD_PENDING_MAX_ITEMS + 1);
    m->batch.items = m->pointers;
    for (size_t i = 0; i < m->batch.n_items; i++) {
        Cistern__BatchItem *item = &m->items[i];

        cistern__batch_item__init(item);
        item->kind = (Cistern__BatchItem__Kind)(1 + rand() % 6);
        item->chunk = (uint32_t)any_number();
        item->has_generation = rand() % 2;
        item->generation = item->has_generation ? any_number() : 0;
        item->has_ahead = rand() % 2;
        item->ahead = item->has_ahead && rand() % 2;
        m->pointers[i] = item;
    }
    return cistern__batch__pack(&m->batch, out);
}

static void assert_same(const Cistern__Batch *expected)
{
    ck_assert_uint_eq(batch.attempt, expected->attempt);
    ck_assert_uint_eq(batch.n_items, expected->n_items);
    for (size_t i = 0; i < expected->n_items; i++) {
        const Cistern__BatchItem *item = expected->items[i];

        suite_must(batch.items[i].kind == (uint32_t)item->kind &&
                       batch.items[i].chunk == item->chunk &&
                       batch.items[i].generation == item->generation &&
                       batch.items[i].ahead == (item->ahead != 0),
                   "item %zu", i);
    }
}

/* A Batch that protobuf-c has packed is read to the same values. */
START_TEST(what_is_packed_is_read)
{
    static uint8_t bytes[CST_FRAME_MAX_BODY];
    static struct message m;

    seed();
    for (unsigned i = 0; i < 2000; i++) {
        size_t n = pack_random(&m, bytes);

        ck_assert_msg(read_exactly(bytes, n) == CST_OK, "%s", err.text);
        assert_same(&m.batch);
    }
}
END_TEST

/* Changed and cut bytes are either refused, or read to the values that protobuf-c reads. No read
 * goes beyond their end. */
START_TEST(damage_is_refused_or_read_alike)
{
    static uint8_t bytes[CST_FRAME_MAX_BODY];
    static struct message m;
    unsigned n_same = 0;

    seed();
    for (unsigned i = 0; i < 20000; i++) {
        size_t n = pack_random(&m, bytes);
        Cistern__Batch *other;

        for (int k = rand() % 4; k > 0 && n > 0; k--) {
            bytes[(size_t)rand() % n] = (uint8_t)rand();
        }
        n = rand() % 2 == 0 && n > 0 ? (size_t)rand() % n : n;
        other = cistern__batch__unpack(NULL, n, bytes);
        if (read_exactly(bytes, n) == CST_OK && other != NULL) {
            assert_same(other);
            n_same++;
        }
        if (other != NULL) {
            cistern__batch__free_unpacked(other, NULL);
        }
    }
    ck_assert_uint_gt(n_same, 1000);
}
END_TEST

/* An unknown field is skipped, whatever its type. A message without a required field is refused. */
START_TEST(unknown_fields_are_skipped)
{
    static const uint8_t unknown[] = {1 << 3, 5,       /* attempt 5 */
                                      9 << 3, 0x80, 1, /* an unknown field with a number */
                                      /* An unknown field of eight bytes. */
                                      9 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 9 << 3 | 5, 1, 2, 3,
                                      4,                       /* an unknown field of four bytes */
                                      9 << 3 | 2, 2, 'a', 'b', /* an unknown field with text */
                                      2 << 3 | 2, 7, 1 << 3, 1, 2 << 3, 6, 9 << 3, 0x80, 1};
    static const uint8_t no_attempt[] = {2 << 3 | 2, 4, 1 << 3, 1, 2 << 3, 6};
    static const uint8_t no_chunk[] = {1 << 3, 5, 2 << 3 | 2, 2, 1 << 3, 1};

    ck_assert_msg(read_exactly(unknown, sizeof unknown) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(batch.attempt, 5);
    ck_assert_uint_eq(batch.n_items, 1);
    ck_assert_uint_eq(batch.items[0].chunk, 6);
    ck_assert_int_eq(read_exactly(no_attempt, sizeof no_attempt), CST_EPROTO);
    ck_assert_int_eq(read_exactly(no_chunk, sizeof no_chunk), CST_EPROTO);
    ck_assert_int_eq(read_exactly(unknown, 0), CST_EPROTO);
}
END_TEST

/* A batch with one item more than allowed is refused, and the message names the limit. */
START_TEST(too_many_items_are_refused)
{
    uint8_t bytes[2 + 6 * (CSTD_PENDING_MAX_ITEMS + 1)] = {1 << 3, 5};

    for (unsigned i = 0; i <= CSTD_PENDING_MAX_ITEMS; i++) {
        memcpy(bytes + 2 + 6 * i, (uint8_t[]){2 << 3 | 2, 4, 1 << 3, 1, 2 << 3, 6}, 6);
    }
    ck_assert_int_eq(read_exactly(bytes, sizeof bytes - 6), CST_OK);
    ck_assert_int_eq(read_exactly(bytes, sizeof bytes), CST_EINVAL);
}
END_TEST

/* protobuf-c reads what was written. This includes results in which each item has the longest
 * possible message; they still fit into a frame. */
START_TEST(what_is_written_is_unpacked)
{
    static uint8_t bytes[CST_FRAME_MAX_BODY];
    static struct cstd_pending_item items[CSTD_PENDING_MAX_ITEMS];
    static char words[384];

    seed();
    memset(words, 'w', sizeof words - 1);
    for (unsigned i = 0; i < 2000; i++) {
        uint32_t n =
            i == 0 ? CSTD_PENDING_MAX_ITEMS : (uint32_t)rand() % (CSTD_PENDING_MAX_ITEMS + 1);
        Cistern__BatchDone *done;
        size_t n_bytes;

        for (uint32_t k = 0; k < n; k++) {
            bool failed = i == 0 || rand() % 4 == 0, lease = !failed && rand() % 2 == 0;
            bool home = lease && rand() % 2 == 0, reason = failed && rand() % 2 == 0;

            items[k] = (struct cstd_pending_item){.status = failed ? -(1 + rand() % 25) : 0,
                                                  .reason = reason ? CST_REASON_HANDED_IN : 0,
                                                  .text = failed ? words : NULL,
                                                  .hit = lease && rand() % 2 == 0,
                                                  .slab = lease ? (uint32_t)any_number() : 0,
                                                  .offset = lease ? any_number() : 0,
                                                  .generation = lease ? any_number() | 1 : 0,
                                                  .home_bytes = home ? any_number() | 1 : 0};
            items[k].home.segment = (uint32_t)any_number();
            items[k].home.offset = any_number();
        }
        n_bytes = cstd_batch_write(items, n, n % 2 == 1, bytes);
        ck_assert_uint_le(n_bytes, sizeof bytes);
        done = cistern__batch_done__unpack(NULL, n_bytes, bytes);
        ck_assert_ptr_nonnull(done);
        ck_assert_uint_eq(done->n_results, n);
        ck_assert_int_eq(done->has_paused && done->paused, n % 2 == 1);
        for (uint32_t k = 0; k < n; k++) {
            const Cistern__ItemResult *r = done->results[k];

            suite_must(r->status == items[k].status &&
                           r->has_generation == (items[k].generation != 0) &&
                           r->generation == items[k].generation && r->slab == items[k].slab &&
                           r->offset == items[k].offset && r->hit == items[k].hit,
                       "result %u", k);
            suite_must(r->has_home_bytes == (items[k].home_bytes != 0) &&
                           r->home_bytes == items[k].home_bytes &&
                           (!r->has_home_bytes || (r->home_segment == items[k].home.segment &&
                                                   r->home_offset == items[k].home.offset)),
                       "home of result %u", k);
            suite_must((r->text != NULL) == (items[k].text != NULL) &&
                           (r->text == NULL || strcmp(r->text, words) == 0),
                       "text of result %u", k);
            suite_must(r->reason == items[k].reason, "reason of result %u", k);
        }
        cistern__batch_done__free_unpacked(done, NULL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("batch");
    TCase *tc = suite_case(suite, "batch", NULL, NULL);

    tcase_add_test(tc, what_is_packed_is_read);
    tcase_add_test(tc, damage_is_refused_or_read_alike);
    tcase_add_test(tc, unknown_fields_are_skipped);
    tcase_add_test(tc, too_many_items_are_refused);
    tcase_add_test(tc, what_is_written_is_unpacked);
    return suite_run(suite);
}
