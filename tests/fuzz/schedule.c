/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes pipeline schedules in PyTorch's CSV. An input is the text. */
#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_text.h"
#include "offload/parallel/schedule_time.h"

#include "tests/fuzz/fuzz.h"

#include <string.h>

const char fuzz_name[] = "schedule";

size_t fuzz_seed(uint8_t *out, size_t max)
{
    const struct cst_schedule_size size = {2, 4, 4, NULL};
    const struct cst_schedule_kind *kind = NULL;
    struct cst_schedule schedule;
    struct cst_err err = {0};
    char *text = NULL;
    size_t n = 0;

    fuzz_must(cst_schedule_find(&kind, "zb-h1", &err) == CST_OK, err.text);
    fuzz_must(cst_schedule_make(&schedule, kind, &size, &err) == CST_OK, err.text);
    fuzz_must(cst_schedule_write(&text, &n, &schedule, true, &err) == CST_OK && n <= max, err.text);
    memcpy(out, text, n);
    cst_schedule_close(&schedule);
    free(text);
    return n;
}

static bool is_same(const struct cst_schedule *a, const struct cst_schedule *b)
{
    return a->n_ranks == b->n_ranks && a->n_stages == b->n_stages && a->n_micro == b->n_micro &&
           memcmp(a->first, b->first, (a->n_ranks + 1U) * sizeof *a->first) == 0 &&
           memcmp(a->rank_of, b->rank_of, a->n_stages * sizeof *a->rank_of) == 0 &&
           memcmp(a->recomputes, b->recomputes, a->n_stages * sizeof *a->recomputes) == 0 &&
           memcmp(a->actions, b->actions, a->first[a->n_ranks] * sizeof *a->actions) == 0;
}

/* Check that lists are written, and read as they were. */
static void write_again(const struct cst_schedule *schedule)
{
    struct cst_schedule second = {0};
    struct cst_err err = {0};
    char *text = NULL;
    size_t n = 0;

    fuzz_must(cst_schedule_write(&text, &n, schedule, true, &err) == CST_OK, err.text);
    fuzz_must(cst_schedule_read(&second, text, n, &err) == CST_OK, err.text);
    fuzz_must(is_same(schedule, &second), "lists are read as they were written");
    cst_schedule_close(&second);
    free(text);
}

/* Check that a legal schedule comes to its end, and that all of it is counted. */
static void run(const struct cst_schedule *schedule)
{
    struct cst_stage_cost *costs = calloc(schedule->n_stages, sizeof *costs);
    uint32_t *in_flight = calloc(schedule->n_stages, sizeof *in_flight);
    uint32_t *restored = calloc(schedule->n_stages, sizeof *restored);
    struct cst_schedule_times times;
    struct cst_err err = {0};

    fuzz_must(costs != NULL && in_flight != NULL && restored != NULL, "memory");
    for (uint32_t s = 0; s < schedule->n_stages; s++) {
        costs[s] = (struct cst_stage_cost){.forward = 1, .backward = 1, .weight = 1};
    }
    fuzz_must(cst_schedule_time(&times, schedule, costs, NULL, NULL, &err) == CST_OK, err.text);
    fuzz_must(times.busy == 3.0 * schedule->n_stages * schedule->n_micro, "all units are done");
    fuzz_must(cst_schedule_in_flight(schedule, in_flight, restored, &err) == CST_OK, err.text);
    for (uint32_t s = 0; s < schedule->n_stages; s++) {
        fuzz_must(in_flight[s] >= restored[s] && restored[s] >= 1 &&
                      in_flight[s] <= schedule->n_micro,
                  "units in flight");
    }
    free(costs);
    free(in_flight);
    free(restored);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cst_schedule schedule = {0};
    struct cst_err err = {0};
    int rc = cst_schedule_read(&schedule, (const char *)data, n, &err);

    if (rc == CST_OK) {
        write_again(&schedule);
        rc = cst_schedule_check(&schedule, &err);
        if (rc == CST_OK) {
            run(&schedule);
        }
        cst_schedule_close(&schedule);
    }
    fuzz_must(rc == CST_OK || (rc == CST_EINVAL && err.status == rc && err.text[0] != '\0'),
              "a refusal is of the text, and has words");
    return 0;
}
