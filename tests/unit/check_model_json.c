/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of models in files: everything that can be declared is kept, and errors are reported with
 * their place. */
#include "client/cli/model_json.h"
#include "tests/lib/suite.h"
#include "tests/lib/bits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A model that uses every key. */
static const char full[] =
    "{\"name\": \"m\", \"world\": 4, \"heads\": 6, \"groups\": [[0, 1], [2, 3]],"
    " \"tensors\": [{\"name\": \"a\", \"shape\": [8, 16], \"decay_scale\": 0},"
    "  {\"name\": \"b\", \"shape\": [4], \"group\": 1, \"pattern\": \"tensor\","
    "   \"whole\": [8], \"first\": [2], \"packed\": [2], \"lr_scale\": 0.5},"
    "  {\"name\": \"c\", \"shape\": [2, 2], \"pattern\": \"frozen\"},"
    "  {\"name\": \"d\", \"shape\": [3], \"group\": 2, \"pattern\": \"expert\"}],"
    " \"operators\": [{\"name\": \"x\", \"tensors\": [\"a\", \"c\"], \"flops\": 1.5e9,"
    "   \"activation_bytes\": 4096, \"out_bytes\": 512, \"tp_bytes\": 256},"
    "  {\"name\": \"y\", \"tensors\": [\"d\"], \"expected_uses\": 0.25},"
    "  {\"name\": \"z\", \"tensors\": [\"b\", \"a\"]}]}";

static int from_text(struct cli_model *out, const char *text, struct cst_err *err)
{
    json_t *root = json_loads(text, 0, NULL);
    int rc;

    ck_assert_ptr_nonnull(root);
    rc = cli_model_from_json(out, root, err);
    json_decref(root);
    return rc;
}

static void check_full(const struct cli_model *model)
{
    const struct cst_model *m = &model->model;

    ck_assert_str_eq(model->name, "m");
    ck_assert_uint_eq(model->world, 4);
    ck_assert_uint_eq(model->heads, 6);
    ck_assert_uint_eq(m->n_groups, 3);
    ck_assert_uint_eq(word_of(&m->groups[0]), 3);
    ck_assert_uint_eq(word_of(&m->groups[1]), 12);
    ck_assert_uint_eq(m->n_tensors, 4);
    ck_assert_uint_eq(m->n_params, 128 + 4 + 4 + 3);
    ck_assert_uint_eq(m->tensors[0].n_dims, 2);
    ck_assert_int_eq(m->tensors[0].shape[1], 16);
    ck_assert_double_eq((double)m->tensors[0].decay_scale, 0);
    ck_assert_double_eq((double)m->tensors[1].lr_scale, 0.5);
    ck_assert_uint_eq(m->tensors[1].group, 1);
    ck_assert_int_eq(m->tensors[1].pattern, CST_PATTERN_TENSOR);
    ck_assert_int_eq(m->tensors[1].box->whole[0], 8);
    ck_assert_int_eq(m->tensors[1].box->first[0], 2);
    ck_assert_int_eq(m->tensors[1].box->packed[0], 2);
    ck_assert_int_eq(m->tensors[2].pattern, CST_PATTERN_FROZEN);
    ck_assert_uint_eq(m->n_operators, 3);
    ck_assert_double_eq(m->operators[0].flops, 1.5e9);
    ck_assert_uint_eq(m->operators[0].activation_bytes, 4096);
    ck_assert_uint_eq(m->operators[0].out_bytes, 512);
    ck_assert_uint_eq(m->operators[0].sum_bytes, 256);
    ck_assert_uint_eq(m->operators[1].out_bytes, 0);
    ck_assert_double_eq((double)m->operators[1].expected_uses, 0.25);
    ck_assert_double_eq((double)m->operators[2].expected_uses, 1);
    ck_assert_uint_eq(m->operators[2].tensors[0], 1);
    ck_assert_uint_eq(m->operators[2].tensors[1], 0);
}

/* A model that is read, written and read again is unchanged. */
START_TEST(test_round_trip)
{
    struct cli_model model, again;
    struct cst_err err = {0};
    json_t *root;

    ck_assert_int_eq(from_text(&model, full, &err), CST_OK);
    check_full(&model);
    root = cli_model_to_json(&model);
    ck_assert_ptr_nonnull(root);
    ck_assert_int_eq(cli_model_from_json(&again, root, &err), CST_OK);
    check_full(&again);
    json_decref(root);
    cli_model_close(&model);
    cli_model_close(&again);
}
END_TEST

/* A model is cut into the stages of its operators, also when it is written and read again. */
START_TEST(test_stages)
{
    struct cli_model model, again;
    struct cst_err err = {0};
    json_t *root;

    ck_assert_int_eq(
        from_text(&model,
                  "{\"name\": \"m\", \"tensors\": [{\"name\": \"a\", \"shape\": [2]}], "
                  "\"operators\": [{\"name\": \"x\", \"tensors\": [\"a\"], \"stage\": 0}, "
                  "{\"name\": \"y\", \"tensors\": [\"a\"], \"stage\": 0}, "
                  "{\"name\": \"z\", \"tensors\": [\"a\"], \"stage\": 1}]}",
                  &err),
        CST_OK);
    root = cli_model_to_json(&model);
    ck_assert_ptr_nonnull(root);
    ck_assert_int_eq(cli_model_from_json(&again, root, &err), CST_OK);
    ck_assert_uint_eq(again.model.n_stages, 2);
    ck_assert_uint_eq(again.model.operators[1].stage, 0);
    ck_assert_uint_eq(again.model.operators[2].stage, 1);
    json_decref(root);
    cli_model_close(&model);
    cli_model_close(&again);
}
END_TEST

/* The number of ranks can be changed, but not to less than the groups name. */
START_TEST(test_world)
{
    struct cli_model model;
    struct cst_err err = {0};

    ck_assert_int_eq(from_text(&model, full, &err), CST_OK);
    ck_assert_int_eq(cli_model_set_world(&model, 64, &err), CST_OK);
    ck_assert_uint_eq(model.world, 64);
    ck_assert_int_eq(cli_model_set_world(&model, 3, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "3 ranks: group 2 of the model has a higher rank");
    ck_assert_int_eq(cli_model_set_world(&model, 513, &err), CST_EINVAL);
    ck_assert_int_eq(cli_model_set_world(&model, 0, &err), CST_EINVAL);
    ck_assert_uint_eq(model.world, 64);
    cli_model_close(&model);
}
END_TEST

#define TENSORS(text) "{\"name\": \"m\", \"operators\": [], \"tensors\": [" text "]}"
#define OPERATORS(text)                                                                            \
    "{\"name\": \"m\", \"tensors\": [{\"name\": \"a\", \"shape\": [2]}], \"operators\": [" text "]}"

static const struct {
    const char *text;  /* content of a file */
    const char *words; /* beginning of the error */
} bad[] = {
    {"[]", "the file: wanted an object, not an array"},
    {"{\"name\": \"m\"}", "the file: no 'tensors'"},
    {"{\"nam\": \"m\"}", "the file: unknown key 'nam'"},
    {"{\"name\": 3}", "name: wanted text, not a whole number"},
    {"{\"name\": \"m\", \"world\": 513}", "world: 513 is not within 0 to 512"},
    {"{\"name\": \"m\", \"world\": 0}", "world: 0 ranks: allowed are 1 to 512"},
    {"{\"name\": \"m\", \"world\": 2, \"groups\": [[0, 2]]}", "groups[0][1]: wanted a rank from 0"},
    {"{\"name\": \"m\", \"world\": 2, \"groups\": [[0], [1, 1]]}", "groups[1][1]: rank 1 twice"},
    {"{\"name\": \"m\", \"groups\": [[]]}", "groups[0]: wanted an array of ranks"},
    {TENSORS(""), "tensors: 0 values, allowed are 1 to 65536"},
    {TENSORS("{\"name\": \"a\"}"), "tensors[0]: no 'shape'"},
    {TENSORS("{\"name\": \"a\", \"shape\": [2], \"type\": 1}"), "tensors[0]: unknown key 'type'"},
    {TENSORS("{\"name\": \"a\", \"shape\": [2], \"dtype\": \"int8\"}"),
     "tensors[0].dtype: no type 'int8' (there are: bf16, fp32)"},
    {TENSORS("{\"name\": \"a\", \"shape\": []}"), "tensors[0].shape: 0 values"},
    {TENSORS("{\"name\": \"a\", \"shape\": [2.5]}"), "tensors[0].shape[0]: wanted a whole number"},
    {TENSORS("{\"name\": \"a\", \"shape\": [0]}"), "tensors[0]: "},
    {TENSORS("{\"name\": \"a\", \"shape\": [2]}, {\"name\": \"a\", \"shape\": [2]}"),
     "tensors[1]: "},
    {TENSORS("{\"name\": \"a\", \"shape\": [2], \"group\": 1}"), "tensors[0].group: 1 is not"},
    {TENSORS("{\"name\": \"a\", \"shape\": [2], \"pattern\": \"x\"}"),
     "tensors[0].pattern: no pattern 'x' (there are: shard, "},
    {TENSORS("{\"name\": \"a\", \"shape\": [2], \"pattern\": \"tensor\"}"), "tensors[0]: "},
    {TENSORS("{\"name\": \"a\", \"shape\": [2], \"whole\": [2, 2]}"),
     "tensors[0]: whole, first and packed have as many"},
    {TENSORS("{\"name\": \"a\", \"shape\": [2], \"lr_scale\": -1}"), "tensors[0].lr_scale: -1 is"},
    {OPERATORS(""), "operators: 0 values"},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [\"b\"]}"),
     "operators[0].tensors[0]: no tensor 'b'"},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [0]}"),
     "operators[0].tensors[0]: wanted a tensor's"},
    {OPERATORS("{\"name\": \"x\", \"tensors\": []}"), "operators[0].tensors: 0 values"},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [\"a\"], \"flops\": \"1\"}"),
     "operators[0].flops: wanted a number, not text"},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [\"a\"], \"activation_bytes\": 1.5}"),
     "operators[0].activation_bytes: wanted a whole number"},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [\"a\"]}, {\"name\": \"x\", \"tensors\": [\"a\"]}"),
     "operators[1]: "},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [\"a\"], \"stage\": 1}"), "operators[0].stage: "},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [\"a\"], \"stage\": 0}, {\"name\": \"y\", "
               "\"tensors\": [\"a\"]}"),
     "operators[1].stage: operators have the stages 0, 1, ..."},
    {OPERATORS("{\"name\": \"x\", \"tensors\": [\"a\"]}, {\"name\": \"y\", \"tensors\": "
               "[\"a\"], \"stage\": 0}"),
     "operators[1]: operator 'x' was declared before the first stage"},
};

/* Each file is refused with an error that names the place. */
START_TEST(test_bad)
{
    struct cli_model model;
    struct cst_err err = {0};
    int rc = from_text(&model, bad[_i].text, &err);

    ck_assert_msg(rc == CST_EINVAL || rc == CST_EEXIST, "%s: %d", bad[_i].text, rc);
    ck_assert_msg(strncmp(err.text, bad[_i].words, strlen(bad[_i].words)) == 0, "'%s', not '%s'",
                  err.text, bad[_i].words);
}
END_TEST

/* The error for a file begins with the file's name. */
START_TEST(test_file)
{
    char path[] = "/tmp/cistern-check.XXXXXX";
    struct cli_model model;
    struct cst_err err = {0};
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "{}", 2), 2);
    ck_assert_int_eq(cli_model_read(&model, path, &err), CST_EINVAL);
    ck_assert_int_eq(strncmp(err.text, path, strlen(path)), 0);
    ck_assert_str_eq(err.text + strlen(path), ": the file: no 'name'");
    ck_assert_int_eq(pwrite(fd, full, sizeof full - 1, 0), sizeof full - 1);
    ck_assert_int_eq(cli_model_read(&model, path, &err), CST_OK);
    check_full(&model);
    cli_model_close(&model);
    (void)close(fd);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(cli_model_read(&model, path, &err), CST_ENOTFOUND);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_json");
    TCase *tcase = suite_case(suite, "model_json", NULL, NULL);

    tcase_add_test(tcase, test_round_trip);
    tcase_add_test(tcase, test_stages);
    tcase_add_test(tcase, test_world);
    tcase_add_loop_test(tcase, test_bad, 0, sizeof bad / sizeof *bad);
    tcase_add_test(tcase, test_file);
    return suite_run(suite);
}
