/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/base/heap: the greatest key is on top after any insertions, changes and
 * removals. */
#include "offload/base/heap.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

#define IDS 100

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % n;
}

static bool is_less(const struct cst_heap_key *a, const struct cst_heap_key *b)
{
    return a->major != b->major ? a->major < b->major : a->minor < b->minor;
}

/* Compared with a linear search, from a seed. Two heaps share the array of positions; each thing is
 * in at most one of them. */
START_TEST(greatest_is_on_top)
{
    uint32_t at[IDS];
    struct cst_heap heaps[2];
    struct cst_heap_key keys[IDS];
    int in[IDS];

    random_state = (uint64_t)_i + 1;
    memset(at, 0xff, sizeof at);
    memset(in, 0xff, sizeof in); /* -1: in no heap */
    ck_assert_int_eq(cst_heap_init(&heaps[0], IDS, at), 0);
    ck_assert_int_eq(cst_heap_init(&heaps[1], IDS, at), 0);
    for (int turn = 0; turn < 5000; turn++) {
        uint32_t id = below(IDS);

        if (in[id] >= 0 && below(3) == 0) {
            cst_heap_remove(&heaps[in[id]], id);
            in[id] = -1;
        } else {
            in[id] = in[id] >= 0 ? in[id] : (int)below(2);
            keys[id] = (struct cst_heap_key){.major = below(20), .minor = below(20)};
            cst_heap_put(&heaps[in[id]], id, keys[id]);
        }
        for (int h = 0; h < 2; h++) {
            const struct cst_heap_item *top = cst_heap_top(&heaps[h]);
            uint32_t n = 0;
            bool good = cst_heap_check(&heaps[h]);

            for (uint32_t i = 0; i < IDS; i++) {
                n += in[i] == h;
                good = good && (in[i] != h || !is_less(&top->key, &keys[i]));
            }
            ck_assert(good && heaps[h].n == n && (n > 0 || top == NULL));
        }
    }
    cst_heap_close(&heaps[0]);
    cst_heap_close(&heaps[1]);
}
END_TEST

/* Entries stay when the heap grows. */
START_TEST(grows)
{
    static uint32_t at[64];
    struct cst_heap heap = {0};

    memset(at, 0xff, sizeof at);
    for (uint32_t i = 0; i < 64; i++) {
        ck_assert_int_eq(cst_heap_grow(&heap, i + 1, at), 0);
        cst_heap_put(&heap, i, (struct cst_heap_key){.major = i * 7 % 64});
        ck_assert(cst_heap_check(&heap));
    }
    for (uint32_t i = 64; i-- > 0;) {
        const struct cst_heap_item *top = cst_heap_top(&heap);

        ck_assert_uint_eq(top->key.major, i);
        cst_heap_remove(&heap, top->id);
    }
    ck_assert_ptr_null(cst_heap_top(&heap));
    cst_heap_close(&heap);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("heap");
    TCase *tc = suite_case(s, "heap", NULL, NULL);

    tcase_add_loop_test(tc, greatest_is_on_top, 0, 8);
    tcase_add_test(tc, grows);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
