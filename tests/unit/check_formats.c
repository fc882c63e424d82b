/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of READ and WRITE in the core when moments have other formats than fp32, and when there is
 * one moment. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static uint64_t io(enum cst_event_kind kind, uint32_t tensor, enum cst_row row, uint64_t first,
                   uint64_t n)
{
    return rig_io(&rig, kind, tensor, row, first, n);
}

static const struct cst_layout_row *row_of(uint32_t chunk, enum cst_row row)
{
    return &rig.layout.chunks[chunk].rows[row];
}

static void open_states(enum cst_optimizer optimizer, enum cst_moments moments)
{
    const struct rig_job job = {
        .n_chunks = 4, .world = 1, .n_blocks = 3, .optimizer = optimizer, .moments = moments};

    rig_open_job(&rig, &job);
}

static void assert_at(const struct cst_place *place, uint32_t chunk, enum cst_row row)
{
    ck_assert_uint_eq(place->segment, RIG_ARENA_SEGMENT + row_of(chunk, row)->segment);
    ck_assert_uint_eq(place->offset, row_of(chunk, row)->offset);
}

static void assert_codes(const struct cst_command *convert, enum cst_moments moments,
                         enum cst_row row)
{
    ck_assert_int_eq(convert->moments, moments);
    ck_assert_int_eq(convert->row, row);
    ck_assert_uint_eq(convert->first, 10);
    ck_assert_uint_eq(convert->n_elems, 7);
    ck_assert_uint_eq(convert->row_elems, RIG_CHUNK_ELEMS);
    ck_assert_uint_eq(convert->n_src, 1);
    ck_assert_uint_eq(convert->n_dst, 1);
}

/* Moments that are not fp32 are decoded for readers and encoded for writers. The command names
 * their row from its start. */
START_TEST(moments_are_converted)
{
    const enum cst_moments moments = _i == 0 ? CST_MOMENTS_BF16 : CST_MOMENTS_MX8;
    const struct cst_command *convert;
    uint64_t tag;

    open_states(CST_OPTIMIZER_ADAMW, moments);
    tag = io(CST_EV_READ, 2, CST_ROW_MOMENT + 1, 10, 7);
    convert = rig_command(&rig, CST_COMMAND_DECODE, 0);
    ck_assert_ptr_nonnull(convert);
    assert_codes(convert, moments, CST_ROW_MOMENT + 1);
    assert_at(&convert->src[0], 2, CST_ROW_MOMENT + 1);
    ck_assert_uint_eq(convert->dst[0].segment, RIG_STAGING_SEGMENT);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    tag = io(CST_EV_WRITE, 1, CST_ROW_MOMENT, 10, 7);
    convert = rig_command(&rig, CST_COMMAND_ENCODE, 0);
    ck_assert_ptr_nonnull(convert);
    assert_codes(convert, moments, CST_ROW_MOMENT);
    assert_at(&convert->dst[0], 1, CST_ROW_MOMENT);
    ck_assert_uint_eq(convert->src[0].segment, RIG_STAGING_SEGMENT);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* A write of master weights clears the moments in their format. */
START_TEST(write_master_clears_codes)
{
    const struct cst_command *convert;

    open_states(CST_OPTIMIZER_ADAMW, CST_MOMENTS_MX8);
    (void)io(CST_EV_WRITE, 1, CST_ROW_MASTER, 10, 7);
    convert = rig_command(&rig, CST_COMMAND_SET_MASTER, 0);
    ck_assert_ptr_nonnull(convert);
    ck_assert_int_eq(convert->moments, CST_MOMENTS_MX8);
    ck_assert_uint_eq(convert->first, 10);
    ck_assert_uint_eq(convert->row_elems, RIG_CHUNK_ELEMS);
    ck_assert_uint_eq(convert->n_dst, 4);
    ck_assert_uint_eq(convert->dst[0].offset, row_of(1, CST_ROW_MASTER)->offset + 40);
    ck_assert_uint_eq(convert->dst[1].offset, row_of(1, CST_ROW_WEIGHT)->offset + 20);
    assert_at(&convert->dst[2], 1, CST_ROW_MOMENT);
    assert_at(&convert->dst[3], 1, CST_ROW_MOMENT + 1);
    rig_drain(&rig);
}
END_TEST

/* An optimizer with one moment has no second moment to read, write or clear. */
START_TEST(one_moment)
{
    open_states(_i == 0 ? CST_OPTIMIZER_LION : CST_OPTIMIZER_SGD,
                _i == 0 ? CST_MOMENTS_FP32 : CST_MOMENTS_BF16);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 0, CST_ROW_MOMENT + 1, 0, 1)),
                     CST_EUNSUPPORTED);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, 0, CST_ROW_MOMENT + 1, 0, 1)),
                     CST_EUNSUPPORTED);
    ck_assert_uint_eq(rig.n_commands, 0);
    (void)io(CST_EV_WRITE, 0, CST_ROW_MASTER, 0, 5);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->n_dst, 3);
    rig_drain(&rig);
    (void)io(CST_EV_READ, 0, CST_ROW_MOMENT, 0, 5);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), _i == 0 ? 1 : 0);
    rig_drain(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("formats");
    TCase *tcase = suite_case(suite, "formats", NULL, teardown);

    tcase_add_loop_test(tcase, moments_are_converted, 0, 2);
    tcase_add_test(tcase, write_master_clears_codes);
    tcase_add_loop_test(tcase, one_moment, 0, 2);
    return suite_run(suite);
}
