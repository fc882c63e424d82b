/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions that write a part of a block of MX8 and are killed: the rest of the block, which they
 * read, is what it was when the next engine repeats them (kernels/math/undo.h, BLOCKS). */
#include "kernels/engine/recovery.h"
#include "kernels/engine/work_kinds.h"
#include "kernels/host/convert.h"
#include "kernels/math/moments.h"
#include "tests/kernels/hostile.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_ELEMS 96u
#define ROW_BYTES (N_ELEMS + N_ELEMS / CST_MX8_BLOCK)
#define SEGMENT 7u
#define N_ROWS 2u

/* What an engine leaves behind when it is killed. */
struct memory {
    float master[N_ELEMS];
    uint16_t weight[N_ELEMS];
    uint8_t rows[N_ROWS][ROW_BYTES];
    struct cst_undo_slot slot;
};

/* Elements [first, first + n) that are written. */
static const struct {
    uint64_t first, n;
} ranges[] = {{5, 3}, {5, 27}, {0, 3}, {30, 2}, {31, 2}, {5, 80}, {0, 64}, {32, 33}, {1, 95}};

#define N_RANGES (sizeof ranges / sizeof ranges[0])

enum { ENCODE_FIRST, ENCODE_SECOND, SET_MASTER, N_KINDS };

static float values[N_ELEMS];

static void random_values(uint64_t *random, float out[N_ELEMS], bool positive)
{
    for (uint32_t i = 0; i < N_ELEMS; i++) {
        float scale = (float)(1u << hostile_next(random) % 12), x = hostile_unit(random);

        out[i] = scale * (positive && x < 0 ? -x : x);
    }
}

static void fill(struct memory *memory, uint64_t *random)
{
    float old[N_ELEMS];

    for (unsigned k = 0; k < N_ROWS; k++) {
        struct cst_update_moment row = {.values = memory->rows[k],
                                        .exponents = memory->rows[k] + N_ELEMS};

        random_values(random, old, k == 1);
        cst_moments_encode(CST_MOMENTS_MX8, k, 0, N_ELEMS, old, &row);
    }
    memcpy(memory->master, old, sizeof old);
}

/* The conversion @kind of @range in @memory, and where it writes. */
static struct cste_device_convert order(struct memory *memory, struct cste_mem *mem,
                                        struct cste_mem *source, int kind, int range,
                                        struct cst_place places[CSTE_CONVERT_MAX_DST])
{
    const uint64_t first = ranges[range].first;
    struct cste_device_convert c = {.moments = CST_MOMENTS_MX8,
                                    .row_elems = N_ELEMS,
                                    .first = first,
                                    .n_elems = ranges[range].n};
    uint64_t at[CSTE_CONVERT_MAX_DST] = {0};

    *mem = (struct cste_mem){.base = memory, .bytes = sizeof *memory};
    *source = (struct cste_mem){.base = values, .bytes = sizeof values};
    c.src.mem = source;
    if (kind == SET_MASTER) {
        c.what = CSTE_CONVERT_STATES;
        c.n_dst = 2 + N_ROWS;
        at[0] = offsetof(struct memory, master) + first * sizeof(float);
        at[1] = offsetof(struct memory, weight) + first * sizeof(uint16_t);
        at[2] = offsetof(struct memory, rows);
        at[3] = at[2] + ROW_BYTES;
    } else {
        c.what = CSTE_CONVERT_ENCODE;
        c.row = kind == ENCODE_FIRST ? CST_ROW_MOMENT : CST_ROW_MOMENT + 1;
        c.n_dst = 1;
        at[0] = offsetof(struct memory, rows) + (kind == ENCODE_FIRST ? 0 : ROW_BYTES);
    }
    for (uint32_t i = 0; i < c.n_dst; i++) {
        c.dst[i] = (struct cste_addr){.mem = mem, .offset = at[i]};
        places[i] = (struct cst_place){.segment = SEGMENT, .offset = at[i]};
    }
    return c;
}

/* Do what a thread of an engine does. */
static void convert(struct memory *memory, int kind, int range)
{
    struct cst_place places[CSTE_CONVERT_MAX_DST];
    struct cste_mem mem, source;
    const struct cste_device_convert c = order(memory, &mem, &source, kind, range, places);

    cste_work_save_blocks(places, &c, &memory->slot);
    cste_host_convert(cst_kernels_get(NULL), &c);
    cst_undo_drop(&memory->slot);
}

static unsigned n_warned;

static void warn(const struct cst_err *what)
{
    ck_assert_msg(strstr(what->text, "undo slot 0 is dropped") != NULL, "%s", what->text);
    n_warned++;
}

/* Do what the next engine does, to which the segment is added after it has looked once. */
static void recover(struct memory *memory)
{
    struct cste_segment segment = {.id = SEGMENT,
                                   .state = CSTE_SEGMENT_READY,
                                   .mem = {.base = memory, .bytes = sizeof *memory}};
    struct cste_recovery recovery = {.slots = &memory->slot, .n_slots = 1};
    const bool held = cst_undo_holds(&memory->slot);
    struct cste_segments segments;
    struct cst_err err;

    cste_segments_init(&segments);
    ck_assert_uint_eq(cste_recovery_try(&recovery, &segments, warn), held ? 1 : 0);
    ck_assert_int_eq(cste_segments_add(&segments, &segment, &err), CST_OK);
    ck_assert_uint_eq(cste_recovery_try(&recovery, &segments, warn), 0);
    ck_assert(!cst_undo_holds(&memory->slot));
    ck_assert_uint_eq(n_warned, 0);
    cste_segments_close(&segments);
}

static bool same(const struct memory *a, const struct memory *b)
{
    return memcmp(a, b, offsetof(struct memory, slot)) == 0;
}

static void run_stepped(struct memory *memory, int kind, int range)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        _exit(77);
    }
    raise(SIGSTOP);
    convert(memory, kind, range);
    raise(SIGSTOP);
    _exit(0);
}

/* SIGKILL after every single instruction. _i: kind and range. */
START_TEST(killed_at_every_instruction)
{
    const int kind = _i % N_KINDS, range = _i / N_KINDS;
    uint64_t random = suite_seed();
    struct memory *stepped, *image, *want;
    unsigned n_steps = 0, n_held = 0;
    bool partly;
    pid_t pid;
    int status;

    stepped =
        mmap(NULL, 3 * sizeof *stepped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(stepped != MAP_FAILED);
    image = stepped + 1;
    want = stepped + 2;
    random_values(&random, values, kind == ENCODE_SECOND);
    fill(stepped, &random);
    *want = *stepped;
    convert(want, kind, range); /* Also binds functions. */
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        run_stepped(stepped, kind, range);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("ptrace is not allowed here: not tested\n");
        return;
    }
    while (!same(stepped, want) || cst_undo_holds(&stepped->slot)) {
        ck_assert(WIFSTOPPED(status));
        ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        n_held += cst_undo_holds(&stepped->slot) ? 1 : 0;
        if (++n_steps % (suite_is_sparse() ? 29 : 1) == 0) {
            *image = *stepped;
            recover(image);
            convert(image, kind, range);
            ck_assert_msg(same(image, want), "killed after %u instructions: other bits", n_steps);
        }
    }
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    partly = ranges[range].first % CST_MX8_BLOCK != 0 ||
             (ranges[range].first + ranges[range].n) % CST_MX8_BLOCK != 0;
    printf("%u instructions, the slot holds after %u\n", n_steps, n_held);
    ck_assert((n_held > 0) == partly);
    (void)munmap(stepped, 3 * sizeof *stepped);
}
END_TEST

/* A slot with a place behind the end of its segment cannot be right: nothing is written. */
START_TEST(wrong_places_are_dropped)
{
    static struct memory memory, before;
    struct cste_segment segment = {
        .id = SEGMENT, .state = CSTE_SEGMENT_READY, .mem = {.base = &memory, .bytes = ROW_BYTES}};
    struct cste_recovery recovery = {.slots = &memory.slot, .n_slots = 1};
    struct cst_undo_block block = {.segment = SEGMENT,
                                   .codes = _i == 0 ? ROW_BYTES - CST_MX8_BLOCK + 1 : 0,
                                   .exponent = _i == 0 ? 0 : ROW_BYTES};
    struct cste_segments segments;
    struct cst_err err;

    cste_segments_init(&segments);
    ck_assert_int_eq(cste_segments_add(&segments, &segment, &err), CST_OK);
    memset(block.old_codes, 1, sizeof block.old_codes);
    block.old_exponent = 1;
    cst_undo_begin_blocks(&memory.slot, &block, 1);
    ck_assert_uint_eq(cste_recovery_try(&recovery, &segments, warn), 0);
    ck_assert_uint_eq(n_warned, 1);
    ck_assert(!cst_undo_holds(&memory.slot));
    ck_assert(same(&memory, &before));
    cste_segments_close(&segments);
}
END_TEST

/* A command is also repeated if it was complete: the rest of the blocks must not change again. */
START_TEST(repeating_changes_nothing)
{
    uint64_t random = suite_seed();

    for (int i = 0; i < 20000; i++) {
        const int kind = i % N_KINDS, range = (int)(hostile_next(&random) % N_RANGES);
        static struct memory once, twice;

        random_values(&random, values, kind == ENCODE_SECOND);
        fill(&once, &random);
        convert(&once, kind, range);
        twice = once;
        convert(&twice, kind, range);
        ck_assert_msg(same(&once, &twice), "kind %d, range %d", kind, range);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("part_blocks");
    TCase *tcase = suite_case(suite, "blocks", NULL, NULL);

    suite_add_loop(tcase, killed_at_every_instruction, 0, (int)(N_KINDS * N_RANGES));
    tcase_add_loop_test(tcase, wrong_places_are_dropped, 0, 2);
    tcase_add_test(tcase, repeating_changes_nothing);
    tcase_set_timeout(tcase, 60);
    return suite_run(suite);
}
