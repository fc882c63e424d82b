/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/session/pending: requests that wait, and the tags that find them. */
#include "daemon/session/pending.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

static struct cstd_pendings pendings;
static struct cst_err err;

static void setup(void)
{
    cstd_pendings_init(&pendings);
}

static void teardown(void)
{
    cstd_pendings_close(&pendings);
}

static struct cstd_pending *open_one(uint64_t id, uint32_t n_items)
{
    struct cstd_pending *request = NULL;

    ck_assert_int_eq(cstd_pending_open(&request, &pendings, id, 22, n_items, &err), CST_OK);
    ck_assert_ptr_nonnull(request);
    return request;
}

/* The tag of each item finds its request and its number. No tag is 0. */
START_TEST(tags_find_their_item)
{
    struct cstd_pending *v[300];
    uint32_t item;

    for (uint32_t i = 0; i < 300; i++) {
        v[i] = open_one(i, 1 + i % CSTD_PENDING_MAX_ITEMS);
    }
    for (uint32_t i = 0; i < 300; i++) {
        for (uint32_t k = 0; k < v[i]->n_items; k++) {
            ck_assert_uint_ne(cstd_pending_tag(v[i], k), 0);
            ck_assert_ptr_eq(cstd_pending_find(&pendings, cstd_pending_tag(v[i], k), &item), v[i]);
            ck_assert_uint_eq(item, k);
        }
        ck_assert_ptr_null(
            cstd_pending_find(&pendings, cstd_pending_tag(v[i], v[i]->n_items), &item));
    }
}
END_TEST

/* The tag of a request that is over finds nothing, even if its object serves another request. */
START_TEST(old_tags_find_nothing)
{
    struct cstd_pending *first = open_one(1, 3), *second;
    uint64_t tag = cstd_pending_tag(first, 0);
    uint32_t item;

    cstd_pending_close(&pendings, first);
    ck_assert_ptr_null(cstd_pending_find(&pendings, tag, &item));
    second = open_one(2, 3);
    ck_assert_ptr_eq(first, second); /* the object is used again */
    ck_assert_ptr_null(cstd_pending_find(&pendings, tag, &item));
    ck_assert_ptr_null(cstd_pending_find(&pendings, 0, &item));
    ck_assert_ptr_null(cstd_pending_find(&pendings, UINT64_MAX, &item));
}
END_TEST

/* An object that is used again has no old values. */
START_TEST(an_object_begins_anew)
{
    struct cstd_pending *request = open_one(1, 5);

    request->waits_commit = true;
    request->n_left = 0;
    request->items[4].text = strdup("words");
    request->items[4].done = true;
    cstd_pending_close(&pendings, request);
    request = open_one(2, 7);
    ck_assert_uint_eq(request->id, 2);
    ck_assert_uint_eq(request->n_left, 7);
    ck_assert(!request->waits_commit);
    ck_assert(!request->items[4].done);
    ck_assert_ptr_null(request->items[4].text);
}
END_TEST

/* The serial number never becomes 0, so tags stay valid after four thousand million requests. */
START_TEST(serials_wrap_around_zero)
{
    struct cstd_pending *request;
    uint32_t item;

    pendings.serial = UINT32_MAX - 1;
    for (unsigned i = 0; i < 4; i++) {
        request = open_one(i, 1);
        ck_assert_uint_ne(request->serial, 0);
        ck_assert_ptr_eq(cstd_pending_find(&pendings, cstd_pending_tag(request, 0), &item),
                         request);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pending");
    TCase *tc = suite_case(suite, "pending", setup, teardown);

    tcase_add_test(tc, tags_find_their_item);
    tcase_add_test(tc, old_tags_find_nothing);
    tcase_add_test(tc, an_object_begins_anew);
    tcase_add_test(tc, serials_wrap_around_zero);
    return suite_run(suite);
}
