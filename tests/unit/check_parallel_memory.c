/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules, cuts and products without memory: whichever allocation fails, the status is CST_ENOMEM
 * and nothing stays allocated. */
#include "offload/parallel/degrees.h"
#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_text.h"
#include "offload/parallel/schedule_time.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* With --wrap the linker redirects all calls of these functions to __wrap_... */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void __wrap_free(void *p);

static int fail_in = -1; /* Number of allocations until one fails; negative: none fails. */
static bool inside;      /* The code under test is running. */
static int n_live;       /* Allocations inside that are not freed. */

static void *count(void *p)
{
    n_live += inside && p != NULL;
    return p;
}

static bool fails(void)
{
    return inside && fail_in >= 0 && fail_in-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : count(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : count(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t size)
{
    if (fails()) {
        return NULL;
    }
    return p == NULL ? count(__real_realloc(p, size)) : __real_realloc(p, size);
}

void __wrap_free(void *p)
{
    n_live -= inside && p != NULL;
    __real_free(p);
}

/* -- what is tried ---------------------------------------------------------------------------- */

static const struct cst_schedule_size size = {2, 4, 4, NULL};

/* Make, write, read, verify and time a schedule. */
static int schedules(struct cst_err *err)
{
    const struct cst_schedule_kind *kind = NULL;
    struct cst_schedule schedule = {0}, again = {0};
    struct cst_stage_cost costs[4] = {{.forward = 1}};
    struct cst_schedule_times times;
    uint64_t peaks[2];
    char *text = NULL;
    size_t n;
    int rc = cst_schedule_find(&kind, "interleaved", err);

    rc = rc == CST_OK ? cst_schedule_make(&schedule, kind, &size, err) : rc;
    rc = rc == CST_OK ? cst_schedule_write(&text, &n, &schedule, true, err) : rc;
    rc = rc == CST_OK ? cst_schedule_read(&again, text, n, err) : rc;
    rc = rc == CST_OK ? cst_schedule_check(&again, err) : rc;
    rc = rc == CST_OK ? cst_schedule_time(&times, &again, costs, peaks, NULL, err) : rc;
    cst_schedule_close(&schedule);
    cst_schedule_close(&again);
    free(text);
    return rc;
}

static int products(struct cst_err *err)
{
    static const struct cst_degrees_unit units[3] = {
        {.flops = 1, .n_params = 1}, {.flops = 2, .n_params = 1}, {.flops = 3, .n_params = 1}};
    static const struct cst_degrees_input input = {.units = units,
                                                   .n_units = 3,
                                                   .n_ranks = 4,
                                                   .n_micro = 4,
                                                   .heads = 2,
                                                   .flops = 1,
                                                   .link = 1,
                                                   .to_host = 1,
                                                   .to_rank = 1,
                                                   .sums = 1,
                                                   .updates = 1,
                                                   .rank_bytes = 1 << 20,
                                                   .param_bytes = 4};
    struct cst_products found = {0};
    const int rc = cst_degrees_search(&found, &input, err);

    cst_products_close(&found);
    return rc;
}

static int (*const tried[])(struct cst_err *err) = {schedules, products};

START_TEST(no_memory)
{
    struct cst_err err = {0};
    int rc = CST_ENOMEM, n_failed = 0;

    for (int i = 0; rc != CST_OK; i++) {
        fail_in = i;
        inside = true;
        rc = tried[_i](&err);
        inside = false;
        n_failed += rc != CST_OK;
        suite_must(rc == CST_OK || rc == CST_ENOMEM, "allocation %d: status %d", i, rc);
        suite_must(rc == CST_OK || (err.status == CST_ENOMEM && err.text[0] != '\0'),
                   "allocation %d: no words", i);
        suite_must(n_live == 0, "allocation %d: %d are left", i, n_live);
    }
    fail_in = -1;
    ck_assert_int_ge(n_failed, 15);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parallel_memory");
    TCase *tc = suite_case(s, "memory", NULL, NULL);

    tcase_add_loop_test(tc, no_memory, 0, 2);
    return suite_run(s);
}
