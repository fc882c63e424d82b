/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what a report makes of a job's intervals: where the time of steps went, and which chunks
 * were in which pool. */
#include "client/cli/residency_map.h"
#include "client/cli/step_times.h"
#include "tests/lib/suite.h"

#include <stdlib.h>

#define KIND(name) CISTERN__TRACE_INTERVAL__KIND__##name
#define S 1000000000u /* ns */

static Cistern__TraceInterval list[64];
static struct cli_intervals intervals;

static Cistern__TraceInterval *put(Cistern__TraceInterval__Kind kind, uint32_t number,
                                   uint64_t begin, uint64_t end)
{
    Cistern__TraceInterval *i = &list[intervals.n++];

    cistern__trace_interval__init(i);
    i->kind = kind;
    i->number = number;
    i->began_ns = begin * S;
    i->ns = (end - begin) * S;
    return i;
}

static void put_step(uint64_t step, uint64_t begin, uint64_t end, uint64_t exposed)
{
    Cistern__TraceInterval *i = put(KIND(STEP), 0, begin, end);

    i->step = step;
    i->exposed_ns = exposed * S;
}

static void put_chunk(Cistern__TraceInterval__Kind kind, uint32_t rank, uint32_t chunk, bool grad,
                      uint64_t begin, uint64_t end)
{
    Cistern__TraceInterval *i = put(kind, rank, begin, end);

    i->chunk = chunk;
    i->grad = grad;
    if (kind == KIND(LOAD)) {
        i->number = 7; /* The engine. */
        i->has_rank = true;
        i->rank = rank;
    }
}

static void setup(void)
{
    intervals = (struct cli_intervals){.v = list};
}

/* A rank does one thing at each moment, and everything is counted once, in its own step. */
START_TEST(test_times)
{
    struct cli_step_time *v;
    bool failed;
    size_t n;

    put(KIND(WAIT), 0, 100, 103)->ahead = false;
    put_chunk(KIND(LEASE), 0, 1, false, 103, 108);
    put_chunk(KIND(LEASE), 0, 2, false, 105, 110); /* Overlaps the first one. */
    put(KIND(WAIT), 0, 104, 112)->ahead = true;    /* Nobody waited. */
    put(KIND(WAIT), 0, 107, 109)->grad = true;     /* The rank does not compute meanwhile. */
    put(KIND(COMMIT), 0, 115, 120);
    put(KIND(LEASE), 1, 95, 118); /* Began in the step before. */
    put_step(5, 100, 120, 4);
    v = cli_step_times(&intervals, 2, 8, &n, &failed);
    ck_assert(!failed);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(v[0].step, 5);
    ck_assert_double_eq_tol(v[0].seconds, 20, 1e-9);
    ck_assert_double_eq_tol(v[0].parts[CLI_STEP_COMPUTE], 5, 1e-9);
    ck_assert_double_eq_tol(v[0].parts[CLI_STEP_WEIGHTS], 0, 1e-9);
    /* 3 of the wait for weights, 1 of the wait for the commit. */
    ck_assert_double_eq_tol(v[0].parts[CLI_STEP_UPDATE], 4, 1e-9);
    ck_assert_double_eq_tol(v[0].parts[CLI_STEP_COMMIT], 2 + 4, 1e-9);
    ck_assert_double_eq_tol(v[0].parts[CLI_STEP_OTHER], 5, 1e-9);
    ck_assert_uint_eq(v[1].rank, 1);
    ck_assert_double_eq_tol(v[1].parts[CLI_STEP_COMPUTE], 18, 1e-9);
    ck_assert_double_eq_tol(v[1].parts[CLI_STEP_UPDATE], 0, 1e-9);
    ck_assert_double_eq_tol(v[1].parts[CLI_STEP_OTHER], 2, 1e-9);
    free(v);
}
END_TEST

/* A step whose first intervals the daemon has forgotten is left out, and so are all but the last
 * steps. */
START_TEST(test_whole)
{
    struct cli_step_time *v;
    bool failed;
    size_t n;

    intervals.lost = true;
    put(KIND(NORM), 0, 3, 4);
    put_step(1, 2, 10, 0);
    put_step(2, 10, 20, 0);
    put_step(3, 20, 30, 0);
    put_step(4, 30, 40, 0);
    v = cli_step_times(&intervals, 1, 8, &n, &failed);
    ck_assert_uint_eq(n, 3);
    ck_assert_uint_eq(v[0].step, 2);
    free(v);
    v = cli_step_times(&intervals, 1, 2, &n, &failed);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(v[0].step, 3);
    free(v);
}
END_TEST

/* Check span @i of @map. */
static void is(const struct cli_residency_map *map, size_t i, enum cli_residency_kind kind,
               uint32_t chunk, uint64_t begin, uint64_t end)
{
    ck_assert_uint_lt(i, map->n);
    ck_assert_int_eq(map->v[i].kind, kind);
    ck_assert_uint_eq(map->v[i].chunk, chunk);
    ck_assert_uint_eq(map->v[i].begin, begin * S);
    ck_assert_uint_eq(map->v[i].end, end * S);
}

static void put_residency(void)
{
    put_step(1, 0, 11, 0);
    put_chunk(KIND(LOAD), 0, 3, false, 10, 12);
    put_chunk(KIND(LEASE), 0, 3, false, 13, 14); /* It was kept since 12. */
    put_chunk(KIND(LEASE), 0, 3, false, 16, 18); /* It was kept since 14. */
    put_chunk(KIND(LEASE), 0, 3, true, 17, 19);
    put_chunk(KIND(LOAD), 0, 3, false, 25, 27); /* It was evicted before. */
    put_chunk(KIND(LEASE), 0, 3, false, 27, 32);
    put_chunk(KIND(LEASE), 1, 3, false, 11, 12); /* Of another rank. */
    put_step(2, 11, 30, 0);
}

/* Weights are kept between two uses unless they were loaded again. What lies outside the steps is
 * cut off. */
START_TEST(test_residency)
{
    struct cli_residency_map map;

    put_residency();
    ck_assert(cli_residency_map_make(&map, &intervals, 1, 1, 1000, true));
    ck_assert_uint_eq(map.first_step, 2);
    ck_assert_uint_eq(map.last_step, 2);
    ck_assert_uint_eq(map.n, 8);
    is(&map, 0, CLI_RESIDENCY_LOADING, 3, 11, 12);
    is(&map, 1, CLI_RESIDENCY_KEPT, 3, 12, 13);
    is(&map, 2, CLI_RESIDENCY_USED, 3, 13, 14);
    is(&map, 3, CLI_RESIDENCY_KEPT, 3, 14, 16);
    is(&map, 4, CLI_RESIDENCY_USED, 3, 16, 18);
    is(&map, 5, CLI_RESIDENCY_GRADIENT, 3, 17, 19);
    is(&map, 6, CLI_RESIDENCY_LOADING, 3, 25, 27);
    is(&map, 7, CLI_RESIDENCY_USED, 3, 27, 30);
    cli_residency_map_close(&map);
}
END_TEST

/* If loads are not recorded, nothing is said of what is kept. Few spans: one step. None: no map. */
START_TEST(test_residency_limits)
{
    struct cli_residency_map map;

    put_residency();
    ck_assert(cli_residency_map_make(&map, &intervals, 1, 9, 1, false));
    ck_assert_uint_eq(map.first_step, 2);
    ck_assert_uint_eq(map.n, 6);
    cli_residency_map_close(&map);
    ck_assert(cli_residency_map_make(&map, &intervals, 1, 9, 1000, false));
    ck_assert_uint_eq(map.first_step, 1);
    cli_residency_map_close(&map);
    intervals.n = 0;
    ck_assert(cli_residency_map_make(&map, &intervals, 1, 9, 1000, false));
    ck_assert_uint_eq(map.n, 0);
    ck_assert_uint_eq(map.end, map.begin);
    cli_residency_map_close(&map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("report");
    TCase *tcase = suite_case(suite, "report", setup, NULL);

    tcase_add_test(tcase, test_times);
    tcase_add_test(tcase, test_whole);
    tcase_add_test(tcase, test_residency);
    tcase_add_test(tcase, test_residency_limits);
    return suite_run(suite);
}
