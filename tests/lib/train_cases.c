/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_cases.h"

#include "tests/lib/suite.h"

#include <stdio.h>

static char any[16], first[16], second[16];

struct train_placement train_placements[TRAIN_N_PLACES] = {
    [TRAIN_ONE] = {"one", 1, {first}},
    [TRAIN_SAME] = {"same", 2, {second, second}},
    [TRAIN_PEERS] = {"peers", 2, {any, any}},
    [TRAIN_MIXED] = {"mixed", 2, {"host", any}},
    [TRAIN_FOUR] = {"four", 4, {second, "host", first, second}},
};

void train_cases_use(const char *kind)
{
    (void)snprintf(any, sizeof any, "%s", kind);
    (void)snprintf(first, sizeof first, "%s:0", kind);
    (void)snprintf(second, sizeof second, "%s:1", kind);
}

START_TEST(bits)
{
    train_rig_bits(&train_placements[_i]);
}
END_TEST

START_TEST(micro_batch_bits)
{
    train_like.micro_batches = 3;
    train_rig_bits(&train_placements[_i]);
}
END_TEST

START_TEST(engine_killed_anywhere)
{
    train_rig_kill_engine(&train_placements[TRAIN_PEERS], (unsigned)_i,
                          (struct train_points){4, 1, 9});
}
END_TEST

START_TEST(worker_killed_anywhere)
{
    (void)train_rig_kill_worker(&train_placements[TRAIN_MIXED], (uint32_t)_i,
                                (struct train_points){0, 1, 9});
}
END_TEST

void train_cases_bits(TCase *tcase)
{
    suite_add_loop(tcase, bits, 0, TRAIN_N_PLACES);
}

void train_cases_micro_batch_bits(TCase *tcase)
{
    suite_add_loop(tcase, micro_batch_bits, 0, TRAIN_N_PLACES);
}

void train_cases_engine_killed(TCase *tcase, int begin, int end)
{
    suite_add_loop(tcase, engine_killed_anywhere, begin, end);
}

void train_cases_worker_killed(TCase *tcase)
{
    suite_add_loop(tcase, worker_killed_anywhere, 0, 2);
}
