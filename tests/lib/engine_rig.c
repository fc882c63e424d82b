/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/engine_rig.h"

#include <check.h>
#include <string.h>

struct tiny_job job;
struct engine_proc proc;
uint64_t ticket;

static const uint64_t n_elems[N_CHUNKS] = {9000, BIG_ELEMS, 20000};

static void start(bool on_gpu)
{
    if (on_gpu) {
        tiny_job_use_gpu(&job);
    }
    tiny_job_start(&job, &proc, 3, 2, 0);
}

void engine_rig_setup(bool on_gpu)
{
    tiny_job_open(&job, N_CHUNKS, n_elems, N_SLOTS, 7);
    start(on_gpu);
}

void engine_rig_setup_wide(bool on_gpu)
{
    tiny_job_open_wide(&job, N_CHUNKS, n_elems, N_SLOTS, 7);
    start(on_gpu);
}

void engine_rig_teardown(void)
{
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    tiny_job_close(&job);
}

struct engine_completion engine_rig_run(struct engine_command command)
{
    const struct engine_completion *c;

    command.ticket = ++ticket;
    engine_proc_submit(&proc, &command, 1);
    c = engine_proc_wait(&proc, command.ticket);
    ck_assert_ptr_nonnull(c);
    return *c;
}

void engine_rig_must(struct engine_command command)
{
    struct engine_completion c = engine_rig_run(command);

    ck_assert_msg(c.status == CST_OK, "%s", c.text);
}

void *engine_rig_at(struct cst_place place)
{
    bool arena = place.segment == job.ids[TINY_ARENA];

    return (char *)job.base[arena ? TINY_ARENA : TINY_POOL] + place.offset;
}

bool engine_rig_all_zero(const void *bytes, uint64_t n)
{
    const uint8_t *b = bytes;

    return b[0] == 0 && memcmp(b, b + 1, n - 1) == 0;
}
