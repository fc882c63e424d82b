/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the command line and the data file, and of the numbers that are generated from a
 * seed. */
#include "client/gpt/data.h"
#include "client/gpt/compute_device.h"
#include "client/gpt/hyper.h"
#include "client/gpt/model.h"
#include "client/gpt/options.h"
#include "client/gpt/rng.h"
#include "tests/gpt/support.h"
#include "tests/lib/descriptors.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- options ----------------------------------------------------------------------------------- */

/* Bad command lines, and words that their error text must contain: the bad value and the allowed
 * values. */
static const struct {
    const char *line;
    const char *words[3];
} bad_lines[] = {
    {"", {"--data"}},
    {"--data", {"--data", "value"}},
    {"--data f --nonsense", {"--nonsense"}},
    {"--data f extra", {"extra"}},
    {"--data f --layers 0", {"--layers", "'0'", "1 to 4096"}},
    {"--data f --layers 3x", {"--layers", "'3x'"}},
    {"--data f --layers -3", {"--layers", "'-3'"}},
    {"--data f --steps 99999999999999999999999", {"--steps"}},
    {"--data f --lr nan", {"--lr", "'nan'"}},
    {"--data f --lr 1e9", {"--lr", "1000"}},
    {"--data f --beta1 1", {"--beta1"}},
    {"--data f --width 100 --heads 3", {"100", "3", "not divisible"}},
    {"--data f --width 128 --heads 16", {"128", "= 8", "multiple of 16"}},
    {"--data f --rank 2 --world 2", {"--rank 2", "--world 2", "0 to 1"}},
    {"--data f --world 513", {"'513'", "1 to 512"}},
    {"--data f --store ram", {"'ram'", "daemon, local"}},
    {"--data f --optimizer adamax", {"--optimizer", "adamw, adam, lion, sgd"}},
    {"--data f --moments int8", {"--moments", "fp32, bf16, mx8"}},
    {"--data f --rounding up", {"--rounding", "stochastic, nearest"}},
    {"--data f --overlap late", {"--overlap", "commit, early, delayed"}},
    {"--data f --overlap early --clip 0 --dump-grads g", {"--dump-grads", "--overlap early"}},
    {"--data f --grad-over-weight --dump-grads g", {"--dump-grads", "--grad-over-weight"}},
    {"--data f --delay-from 3", {"delay_from 3", "commit"}},
    {"--data f --beta1 0", {"--beta1 0", "adamw"}},
    {"--data f --device-update lots", {"--device-update", "'lots'"}},
    {"--data f --store local --grad-over-weight", {"--grad-over-weight", "--store=local"}},
    {"--data f --store local --rank 1 --world 2", {"--rank 1", "local"}},
    {"--data f --matmul int8", {"'int8'", "bf16"}},
    {"--data f --batch 6 --micro-batches 4", {"--batch 6", "--micro-batches 4"}},
    {"--data f --micro-batches 0", {"--micro-batches", "'0'"}},
    {"--data f --pool 0", {"--pool", "'0'"}},
    {"--data f --quiet=1", {"--quiet", "takes no value"}},
    {"--data f -qx", {"-q", "there is no option"}},
    {"--data f --pool 12Q", {"'12Q'", "1.5GiB"}},
    {"--data f --pool 12MBB", {"'12MBB'"}},
    {"--data f --pool -5%", {"'-5%'"}},
};

/* Bad values are refused with an error text that names the option, the value, and the allowed
 * values. */
START_TEST(bad_options_are_told)
{
    char *argv[32] = {strdup("cistern-gpt")};
    char *line = strdup(bad_lines[_i].line);
    struct gpt_options options;
    struct cst_err err = {0};
    int argc = 1;

    for (char *word = strtok(line, " "); word != NULL; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    ck_assert_int_eq(gpt_options_parse(&options, argc, argv, &err), CST_EINVAL);
    for (size_t i = 0; i < 3 && bad_lines[_i].words[i] != NULL; i++) {
        ck_assert_msg(strstr(err.text, bad_lines[_i].words[i]) != NULL, "'%s' lacks '%s'", err.text,
                      bad_lines[_i].words[i]);
    }
    free(line);
    free(argv[0]);
}
END_TEST

/* Options that the host device does not support are refused with an error text and not ignored. */
START_TEST(host_refuses_what_it_cannot)
{
    static const char *const lines[][2] = {
        {"--data f --recompute", "--recompute"},
        {"--data f --matmul plain", "--matmul plain"},
    };
    const struct gpt_options o = test_options(lines[_i][0]);
    struct gpt_device *device;
    struct cst_err err = {0};

    ck_assert_int_eq(gpt_device_open(&device, &o, &err), CST_EUNSUPPORTED);
    ck_assert_msg(strstr(err.text, lines[_i][1]) != NULL, "%s", err.text);
}
END_TEST

/* The pool is a number of bytes, with units of 1024, or a percentage. */
START_TEST(pools_have_units)
{
    ck_assert_uint_eq(test_options("--data f --pool 4097").job.memory.pool_bytes, 4097);
    ck_assert_uint_eq(test_options("--data f --pool 1.5k").job.memory.pool_bytes, 1536);
    ck_assert_uint_eq(test_options("--data f --pool 3M").job.memory.pool_bytes, 3u << 20);
    ck_assert_uint_eq(test_options("--data f --pool 2G").job.memory.pool_bytes, 2ull << 30);
    ck_assert_double_eq(test_options("--data f --pool 12.5%").pool_percent, 12.5);
    ck_assert_uint_eq(test_options("--data f --pool 12.5%").job.memory.pool_bytes, 0);
}
END_TEST

/* The learning rate rises linearly, never rises after the warm-up, and ends at the minimum. */
START_TEST(rate_warms_up_and_falls)
{
    const struct gpt_options o =
        test_options("--data f --steps 100 --warmup 10 --lr 1 --min-lr .1");

    ck_assert_double_eq_tol(gpt_hyper_lr(&o, 0), 0.1, 1e-12);
    ck_assert_double_eq_tol(gpt_hyper_lr(&o, 9), 1.0, 1e-12);
    ck_assert_double_eq_tol(gpt_hyper_lr(&o, 10), 1.0, 1e-12);
    ck_assert_double_eq_tol(gpt_hyper_lr(&o, 55), 0.55, 1e-12);
    ck_assert_double_eq_tol(gpt_hyper_lr(&o, 100), 0.1, 1e-12);
    for (uint64_t s = 10; s < 100; s++) {
        ck_assert_double_ge(gpt_hyper_lr(&o, s), gpt_hyper_lr(&o, s + 1));
    }
}
END_TEST

/* -- data ------------------------------------------------------------------------------------- */

static void expect_refused(const char *path, int status, const char *words)
{
    struct gpt_data data;
    struct cst_err err = {0};

    ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_BYTES, 256, 16, &err), status);
    ck_assert_msg(strstr(err.text, path) != NULL, "'%s' does not name the file", err.text);
    ck_assert_msg(strstr(err.text, words) != NULL, "'%s' lacks '%s'", err.text, words);
}

/* A missing file, a directory, a FIFO that nobody writes to, an empty file, and a file shorter than
 * one sequence are refused with an error text that names the file and the reason. */
START_TEST(bad_data_files_are_told)
{
    expect_refused(test_path(0, "missing"), CST_EINVAL, "No such file");
    ck_assert_int_eq(mkdir(test_path(1, "directory"), 0700), 0);
    expect_refused(test_path(1, "directory"), CST_EINVAL, "not a regular file");
    ck_assert_int_eq(mkfifo(test_path(2, "fifo"), 0600), 0);
    expect_refused(test_path(2, "fifo"), CST_EINVAL, "not a regular file");
    expect_refused(test_file(3, "empty", "", 0), CST_EINVAL, "has 0 bytes");
    expect_refused(test_file(4, "tiny", "sixteen bytes ok", 16), CST_EINVAL, "need 17");
}
END_TEST

/* A file without read permission is refused. Root may read everything, so a test that runs as root
 * gives up its rights. */
START_TEST(unreadable_data_files_are_told)
{
    const char *path = test_file(0, "secret", "a secret of more than 16 bytes", 30);

    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, 0, 0), 0);
        ck_assert_int_eq(chmod(path, 0600), 0);
        ck_assert_int_eq(seteuid(65534), 0);
    } else {
        ck_assert_int_eq(chmod(path, 0), 0);
    }
    expect_refused(path, CST_EIO, "denied");
    if (getuid() == 0) {
        ck_assert_int_eq(seteuid(0), 0);
    }
}
END_TEST

/* The smallest file has one place for a sequence. Every sequence of a batch is the one at this
 * place, with targets one byte later. */
START_TEST(smallest_data_file_serves)
{
    struct gpt_data data;
    struct cst_err err;
    uint32_t tokens[3 * 16], targets[3 * 16];

    ck_assert_int_eq(gpt_data_open(&data, test_file(0, "small", "0123456789abcdefg", 17),
                                   GPT_TOKENS_BYTES, 256, 16, &err),
                     0);
    ck_assert_int_eq(gpt_data_batch(&data, 1, 2, 3, 16, tokens, targets, &err), 0);
    for (size_t i = 0; i < 3 * 16; i++) {
        ck_assert_uint_eq(tokens[i], (unsigned char)"0123456789abcdef"[i % 16]);
        ck_assert_uint_eq(targets[i], (unsigned char)"123456789abcdefg"[i % 16]);
    }
    gpt_data_close(&data);
}
END_TEST

/* A batch depends only on the seed and the numbers of its sequences. The same arguments give the
 * same batch, another seed or other numbers give another one, and a shorter batch is a part of the
 * longer one. */
START_TEST(batches_are_a_function_of_seed_and_number)
{
    uint8_t text[TEST_TEXT_BYTES];
    uint32_t tokens[5][64], targets[64];
    struct gpt_data data;
    struct cst_err err;

    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)(i * 7 + i / 256);
    }
    ck_assert_int_eq(
        gpt_data_open(&data, test_file(0, "t", text, sizeof text), GPT_TOKENS_BYTES, 256, 16, &err),
        0);
    for (size_t i = 0; i < 5; i++) {
        static const uint64_t seeds[] = {1, 2, 1, 1, 1}, firsts[] = {20, 20, 24, 20, 22};

        ck_assert_int_eq(gpt_data_batch(&data, seeds[i], firsts[i], i == 4 ? 2 : 4, 16, tokens[i],
                                        targets, &err),
                         0);
    }
    ck_assert_int_eq(memcmp(tokens[0], tokens[3], sizeof tokens[0]), 0);
    ck_assert_int_ne(memcmp(tokens[0], tokens[1], sizeof tokens[0]), 0);
    ck_assert_int_ne(memcmp(tokens[0], tokens[2], sizeof tokens[0]), 0);
    ck_assert_int_eq(memcmp(tokens[0] + 32, tokens[4], 32 * sizeof tokens[0][0]), 0);
    gpt_data_close(&data);
}
END_TEST

/* Tokens of two and four bytes are little-endian. One that is not in the vocabulary is refused with
 * its place. A part at the end can be split off. */
START_TEST(tokens_have_a_form)
{
    static const uint8_t file[] = {1, 2, 3, 0, 4, 1, 0, 0, 5, 0, 0, 0};
    const char *path = test_file(0, "t", file, sizeof file);
    struct gpt_data data, part;
    struct cst_err err;
    uint32_t tokens[3], targets[3];

    ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_UINT16, 600, 2, &err), 0);
    ck_assert_uint_eq(data.n_tokens, 6);
    ck_assert_int_eq(gpt_data_sequence(&data, 0, 3, tokens, targets, &err), 0);
    ck_assert(tokens[0] == 513 && tokens[1] == 3 && tokens[2] == 260 && targets[2] == 0);
    ck_assert_int_eq(gpt_data_split(&data, 50, 2, &part, &err), 0);
    ck_assert_uint_eq(data.n_tokens, 3);
    ck_assert_int_eq(gpt_data_sequence(&part, 0, 2, tokens, targets, &err), 0);
    ck_assert(tokens[0] == 0 && tokens[1] == 5 && targets[1] == 0);
    part.vocab = 5;
    ck_assert_int_eq(gpt_data_sequence(&part, 0, 2, tokens, targets, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "token 4 is 5, the vocabulary has 5"));
    ck_assert_int_eq(gpt_data_split(&data, 50, 2, &part, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "1 are for validation and 2 remain"));
    gpt_data_close(&data);
    ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_UINT32, 260, 2, &err), 0);
    ck_assert_int_eq(gpt_data_sequence(&data, 0, 2, tokens, targets, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "token 0 is 197121, the vocabulary has 260"));
    gpt_data_close(&data);
    path = test_file(0, "t", file, sizeof file - 1);
    ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_UINT16, 600, 2, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "has 11 bytes, which is no whole number of tokens"));
}
END_TEST

/* A file that became shorter after it was opened gives an error text with both sizes, and stretches
 * that it still has are read. One stretch is longer than what is read at once. */
START_TEST(shortened_data_files_are_told)
{
    enum { CONTEXT = 10000, N_TOKENS = 20000 };
    static uint16_t text[N_TOKENS];
    static uint32_t tokens[CONTEXT], targets[CONTEXT];
    struct gpt_data data;
    struct cst_err err = {0};
    const char *path;

    for (size_t i = 0; i < N_TOKENS; i++) {
        text[i] = htole16((uint16_t)i);
    }
    path = test_file(0, "t", text, sizeof text);
    ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_UINT16, N_TOKENS, CONTEXT, &err), 0);
    ck_assert_int_eq(truncate(path, 30000), 0);
    ck_assert_int_eq(gpt_data_sequence(&data, 4999, CONTEXT, tokens, targets, &err), 0);
    for (size_t i = 0; i < CONTEXT; i++) {
        ck_assert_uint_eq(tokens[i], 4999 + i);
        ck_assert_uint_eq(targets[i], 5000 + i);
    }
    ck_assert_int_eq(gpt_data_sequence(&data, 5000, CONTEXT, tokens, targets, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, path));
    ck_assert_ptr_nonnull(strstr(err.text, "has 30000 bytes now, and had 40000 when it was opened: "
                                           "byte 30000 is missing"));
    ck_assert_int_eq(gpt_data_sequence(&data, 9000, 2, tokens, targets, &err), 0);
    ck_assert_int_eq(gpt_data_sequence(&data, 16000, 2, tokens, targets, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "has 30000 bytes now, and had 40000 when it was opened: "
                                           "byte 32000 is missing"));
    gpt_data_close(&data);
}
END_TEST

/* The file is closed again when it is refused, after errors of reading, and by the one that has
 * opened it only. */
START_TEST(data_files_are_closed)
{
    const char *path = test_file(0, "t", "0123456789abcdefghij", 20);
    const unsigned before = descriptors_count();
    uint32_t tokens[16], targets[16];
    struct gpt_data data, part;
    struct cst_err err = {0};

    for (int i = 0; i < 3; i++) {
        expect_refused(test_path(1, "missing"), CST_EINVAL, "No such file");
        expect_refused("/", CST_EINVAL, "not a regular file");
        ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_BYTES, 256, 20, &err), CST_EINVAL);
        ck_assert_int_eq(truncate(path, 19), 0);
        ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_UINT16, 256, 2, &err), CST_EINVAL);
        ck_assert_uint_eq(descriptors_count(), before);

        ck_assert_int_eq(gpt_data_open(&data, path, GPT_TOKENS_BYTES, '1', 2, &err), 0);
        ck_assert_uint_eq(descriptors_count(), before + 1);
        ck_assert_int_eq(gpt_data_sequence(&data, 0, 2, tokens, targets, &err), CST_EINVAL);
        ck_assert_int_eq(gpt_data_split(&data, 1, 2, &part, &err), CST_EINVAL);
        ck_assert_int_eq(gpt_data_split(&data, 50, 2, &part, &err), 0);
        ck_assert_int_eq(truncate(path, 4), 0);
        ck_assert_int_eq(gpt_data_sequence(&part, 2, 2, tokens, targets, &err), CST_EIO);
        ck_assert_uint_eq(descriptors_count(), before + 1);
        gpt_data_close(&part);
        ck_assert_uint_eq(descriptors_count(), before + 1);
        gpt_data_close(&data);
        ck_assert_uint_eq(descriptors_count(), before);
        gpt_data_close(&data);
        ck_assert_uint_eq(descriptors_count(), before);
        ck_assert_int_eq(truncate(path, 20), 0);
    }
}
END_TEST

/* -- numbers and weights ---------------------------------------------------------------------- */

/* The normal numbers have mean 0 and standard deviation 1, and about 5 % of them are beyond
 * 1.96. */
START_TEST(normal_numbers_are_normal)
{
    const int n = 200000;
    double sum = 0, squares = 0;
    int beyond = 0;

    for (int i = 0; i < n; i++) {
        const double x = (double)gpt_rng_normal(42, 7, (uint64_t)i);

        sum += x;
        squares += x * x;
        beyond += fabs(x) > 1.96;
    }
    ck_assert_double_eq_tol(sum / n, 0.0, 0.01);
    ck_assert_double_eq_tol(squares / n, 1.0, 0.02);
    ck_assert_double_eq_tol((double)beyond / n, 0.05, 0.005);
}
END_TEST

/* Initial weights do not depend on the pieces in which they are computed, but on the seed. Weights
 * of norms are 1 and do not decay; matrices decay. */
START_TEST(initial_weights_do_not_depend_on_order)
{
    const struct gpt_options o = test_options("--data f --layers 1 --heads 1 --width 16");
    float whole[64], piece[64], other[64];
    struct gpt_model model;
    struct cst_err err;

    ck_assert_int_eq(gpt_model_init(&model, &o, &err), 0);
    gpt_model_initial(&model, 3, 0, 0, 64, 1, whole);
    gpt_model_initial(&model, 3, 0, 40, 24, 1, piece + 40);
    gpt_model_initial(&model, 3, 0, 0, 40, 3, piece);
    gpt_model_initial(&model, 4, 0, 0, 64, 1, other);
    ck_assert_int_eq(memcmp(whole, piece, sizeof whole), 0);
    ck_assert_int_ne(memcmp(whole, other, sizeof whole), 0);
    ck_assert_str_eq(model.tensors[2].name, "h0.ln1.w");
    gpt_model_initial(&model, 3, 2, 0, 16, 1, whole);
    ck_assert_float_eq(whole[15], 1.0f);
    ck_assert_float_eq(model.tensors[2].decay_scale, 0.0f);
    ck_assert_str_eq(model.tensors[4].name, "h0.qkv.w");
    ck_assert_float_eq(model.tensors[4].decay_scale, 1.0f);
    gpt_model_close(&model);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("input");
    TCase *tcase = suite_case(suite, "input", NULL, NULL);

    tcase_add_loop_test(tcase, host_refuses_what_it_cannot, 0, 2);
    tcase_add_loop_test(tcase, bad_options_are_told, 0,
                        (int)(sizeof bad_lines / sizeof bad_lines[0]));
    tcase_add_test(tcase, pools_have_units);
    tcase_add_test(tcase, rate_warms_up_and_falls);
    tcase_add_test(tcase, bad_data_files_are_told);
    tcase_add_test(tcase, unreadable_data_files_are_told);
    tcase_add_test(tcase, smallest_data_file_serves);
    tcase_add_test(tcase, tokens_have_a_form);
    tcase_add_test(tcase, shortened_data_files_are_told);
    tcase_add_test(tcase, data_files_are_closed);
    tcase_add_test(tcase, batches_are_a_function_of_seed_and_number);
    tcase_add_test(tcase, normal_numbers_are_normal);
    tcase_add_test(tcase, initial_weights_do_not_depend_on_order);
    return suite_run(suite);
}
