/* SPDX-License-Identifier: Apache-2.0 */
/* Tests files of options: each option of cistern-gpt is written and read back, mistakes are named
 * with their place, and the command line overrides the file. */
#include "client/gpt/options.h"
#include "proto/options_file.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -- every option ----------------------------------------------------------------------------- */

/* The options @options as a file, which the caller frees. */
static char *saved(const struct gpt_options *options)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    struct cst_err err = {0};

    ck_assert_ptr_nonnull(out);
    ck_assert_msg(cst_options_save(gpt_options_table, options, out, &err) == CST_OK, "%s",
                  err.text);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

/* Read the file @text into @options. Returns the status; *file holds the texts. */
static int load(const char *text, struct gpt_options *options, struct cst_options_given *given,
                json_t **file, struct cst_err *err)
{
    const char *path = test_file(0, "job.json", text, strlen(text));

    *given = (struct cst_options_given){.first = 0};
    return cst_options_load(gpt_options_table, options, path, given, file, err);
}

static bool same_field(const struct cst_option *option, const struct gpt_options *a,
                       const struct gpt_options *b)
{
    const void *x = (const char *)a + option->value.field;
    const void *y = (const char *)b + option->value.field;

    switch (option->value.kind) {
    case CST_VALUE_FLAG:
    case CST_VALUE_YES:
        return memcmp(x, y, sizeof(bool)) == 0;
    case CST_VALUE_TEXT:
        return strcmp(*(const char *const *)x, *(const char *const *)y) == 0;
    case CST_VALUE_U32:
    case CST_VALUE_SECONDS:
    case CST_VALUE_NAME:
        return memcmp(x, y, sizeof(uint32_t)) == 0;
    case CST_VALUE_LIST:
        return memcmp(x, y, sizeof(struct cst_value_list)) == 0;
    case CST_VALUE_U64:
    case CST_VALUE_REAL:
    case CST_VALUE_SIZE:
    case CST_VALUE_PATH:
    case CST_VALUE_OTHER:
        break;
    }
    return memcmp(x, y, sizeof(uint64_t)) == 0;
}

/* Set the option from @typed, as on a command line, write the options, and read them. */
static void check_round_trip(const struct cst_option *option, const char *typed)
{
    struct gpt_options before = test_options("--data text"), after = test_options("--data other");
    struct cst_options_given given;
    struct cst_err err = {0};
    json_t *file;
    char *text, *again;

    ck_assert_msg(cst_value_read(&option->value, &before, typed, &err) == CST_OK, "--%s %s: %s",
                  option->name, typed, err.text);
    text = saved(&before);
    ck_assert_msg(load(text, &after, &given, &file, &err) == CST_OK, "--%s %s: %s", option->name,
                  typed, err.text);
    suite_must(given.rows[option - gpt_options_table], "--%s %s is not in the file:\n%s",
               option->name, typed, text);
    suite_must(same_field(option, &before, &after), "--%s %s has another value afterwards:\n%s",
               option->name, typed, text);
    again = saved(&after);
    ck_assert_str_eq(text, again);
    json_decref(file);
    free(again);
    free(text);
}

static void check_number(const struct cst_option *option, double number)
{
    char typed[64];

    if (number < option->value.least || number > option->value.most) {
        return;
    }
    if (option->value.kind != CST_VALUE_REAL) {
        (void)snprintf(typed, sizeof typed, "%" PRIu64,
                       number < 0x1p64 ? (uint64_t)number : UINT64_MAX);
    } else {
        (void)snprintf(typed, sizeof typed, "%.17g", number);
    }
    check_round_trip(option, typed);
}

/* Each option that is not an action is in the file, in one place, and has the same value after it
 * was written and read: the smallest, the largest, and others between. */
START_TEST(test_round_trips)
{
    static const char *const actions[] = {"describe", "config", "print-config", "help", "version"};
    const struct cst_option *o = &gpt_options_table[_i];

    if (o->name == NULL) {
        return;
    }
    if (o->section == NULL) {
        bool is_action = false;

        for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
            is_action = is_action || strcmp(actions[i], o->name) == 0;
        }
        suite_must(is_action, "--%s has no place in the file", o->name);
        return;
    }
    for (const struct cst_option *other = gpt_options_table; other < o; other++) {
        ck_assert(other->name == NULL || strcmp(other->name, o->name) != 0);
    }
    switch (o->value.kind) {
    case CST_VALUE_FLAG:
    case CST_VALUE_YES:
        check_round_trip(o, "yes");
        break;
    case CST_VALUE_TEXT:
    case CST_VALUE_PATH:
        check_round_trip(o, "/a \"text\" with \\ and \xc3\xa4");
        check_round_trip(o, "");
        break;
    case CST_VALUE_U32:
    case CST_VALUE_U64:
    case CST_VALUE_REAL:
    case CST_VALUE_SECONDS:
        check_number(o, o->value.least);
        check_number(o, o->value.most);
        check_number(o, 3);
        check_number(o, 1.0 / 3);
        check_number(o, 0x1p63);
        break;
    case CST_VALUE_NAME:
        for (const char *const *name = o->value.names; *name != NULL; name++) {
            check_round_trip(o, *name);
        }
        break;
    case CST_VALUE_SIZE:
        check_round_trip(o, "1.5G");
        check_round_trip(o, "0");
        check_round_trip(o, o->value.words[0] != NULL ? o->value.words[0] : "1");
        check_round_trip(o, o->value.words[1] != NULL ? o->value.words[1] : "2");
        break;
    case CST_VALUE_LIST:
        check_round_trip(o, "1,65536");
        check_round_trip(o, "3");
        check_round_trip(o, o->value.words[0] != NULL ? o->value.words[0] : "2,1");
        break;
    case CST_VALUE_OTHER: /* --pool */
        check_round_trip(o, "1.5G");
        check_round_trip(o, "33.3%");
        break;
    }
}
END_TEST

/* -- mistakes --------------------------------------------------------------------------------- */

static const struct {
    const char *text;  /* The file. */
    const char *words; /* What the error says after the path. */
} mistakes[] = {
    {"{\n \"optimizer\": {\n  \"beta_1\": 0.9}}",
     ":3: section optimizer, beta_1: there is no such key: did you mean 'beta1'?"},
    {"{\"optimizer\": {}, \n\"optimiser\": {\"lr\": 1}}",
     ":2: there is no section 'optimiser': did you mean 'optimizer'?"},
    {"{\"unlike\": {}}", ":1: there is no section 'unlike'"},
    {"{\"model\": {\"unlike\": 1}}", ":1: section model, unlike: there is no such key"},
    {"{\"data\": {\"data\": \"lr\\\"\"},\n\"model\": {\"layers\": 2,\n\"lr\": 1}}",
     ":3: section model, lr: this key belongs to section optimizer"},
    {"{\"model\": {\"layers\": 2, \"layers\": 3}}",
     ":1:32: duplicate object key near '\"layers\"'"},
    {"{\"model\": {\"layers\": 0}}",
     ":1: section model, layers: '0' is not a number from 1 to 4096"},
    {"{\"model\": {\"layers\": 4097}}",
     ":1: section model, layers: '4097' is not a number from 1 to 4096"},
    {"{\"model\": {\"layers\": 2.5}}",
     ":1: section model, layers: '2.5' is not a number from 1 to 4096"},
    {"{\"model\": {\"layers\": \"2\"}}",
     ":1: section model, layers: the value is a text, and must be a number from 1 to 4096"},
    {"{\"optimizer\": {\"beta1\": 1}}",
     ":1: section optimizer, beta1: '1' is not a number from 0 to 0.9999999"},
    {"{\"optimizer\": {\"optimizer\": \"adamv\"}}",
     ":1: section optimizer, optimizer: 'adamv' is none of adamw, adam, lion, sgd, muon"},
    {"{\"optimizer\": {\"optimizer\": 1}}",
     ":1: section optimizer, optimizer: the value is a number, and must be a text"},
    {"{\"memory\": {\"recompute\": true}}",
     ":1: section memory, recompute: this key belongs to section parallel"},
    {"{\"parallel\": {\"recompute\": \"yes\"}}", ":1: section parallel, recompute: the value is a "
                                                 "text, and must be a number, a list of numbers, "
                                                 "true or false"},
    {"{\"parallel\": {\"recompute\": [1, -1]}}",
     ":1: section parallel, recompute: -1 is not a number from 0 to 65536"},
    {"{\"parallel\": {\"borders\": 2}}", ":1: section parallel, borders: the value is a number, "
                                         "and must be a list of 1 or more numbers"},
    {"{\"parallel\": {\"borders\": []}}",
     ":1: section parallel, borders: the value is a list, and must be a list of 1 or more numbers"},
    {"{\"parallel\": {\"borders\": [2, 0]}}",
     ":1: section parallel, borders: 0 is not a number from 1 to 65536"},
    {"{\"parallel\": {\"borders\": [true]}}",
     ":1: section parallel, borders: the value is true or false, and must be a number from 1 to "
     "65536"},
    {"{\"parallel\": {\"grad_over_weight\": \"yes\"}}",
     ":1: section parallel, grad_over_weight: this key belongs to section memory"},
    {"{\"memory\": {\"pool\": [1]}}",
     ":1: section memory, pool: the value is a list, and must be a number or a text"},
    {"{\"memory\": {\"pool\": \"0%\"}}", ":1: section memory, pool: '0%' is too small for a pool"},
    {"{\"memory\": {\"pool\": \"0.00001%\"}}",
     ":1: section memory, pool: '0.00001%' is too small for a pool"},
    {"{\"memory\": {\"pool\": \"1000001%\"}}",
     ":1: section memory, pool: '1000001%' is too large for a pool (at most 1000000%)"},
    {"{\"data\": {\"data\": null}}",
     ":1: section data, data: the value is null, and must be a text"},
    {"{\"training\": {\"seed\": -1}}",
     ":1: section training, seed: '-1' is not a number from 0 to 18446744073709551615"},
    {"{\"model\": 3}", ":1: section model: the value is a number, and must be an object"},
    {"[]", " is a list, and must be an object"},
    {"{\n\"model\": {,}}", ":2:11: string or '}' expected near ','"},
    {"", ":1:0: '[' or '{' expected near end of file"},
    {"{\"data\": {\"data\": \"a\\u0000b\"}}", ":1:28: \\u0000 is not allowed in a text"},
    {"{\n\"da\\u0000ta\": {}}", ":2:12: \\u0000 is not allowed in a key"},
};

/* Each mistake is named with the file, the line, the section, the key and what is allowed. */
START_TEST(test_mistakes)
{
    struct gpt_options options = test_options("--data text");
    struct cst_options_given given;
    struct cst_err err = {0};
    json_t *file;
    char path[512];

    ck_assert_int_eq(load(mistakes[_i].text, &options, &given, &file, &err), CST_EINVAL);
    ck_assert_ptr_null(file);
    (void)snprintf(path, sizeof path, "%s", test_path(0, "job.json"));
    ck_assert_msg(strncmp(err.text, path, strlen(path)) == 0, "%s", err.text);
    ck_assert_str_eq(err.text + strlen(path), mistakes[_i].words);
}
END_TEST

/* A byte order mark at the beginning, which some editors write, means nothing. */
START_TEST(test_mark)
{
    struct gpt_options options = test_options("--data text");
    struct cst_options_given given;
    struct cst_err err = {0};
    json_t *file;

    ck_assert_msg(load("\xef\xbb\xbf{\"model\": {\"layers\": 3}}", &options, &given, &file, &err) ==
                      CST_OK,
                  "%s", err.text);
    ck_assert_uint_eq(options.layers, 3);
    json_decref(file);
    ck_assert_int_eq(
        load("\xef\xbb\xbf\n\n{\"model\": {\"layers\": 0}}", &options, &given, &file, &err),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, ":3: section model, layers: '0'"));
}
END_TEST

/* A file that does not exist is named. */
START_TEST(test_no_file)
{
    struct gpt_options options = test_options("--data text");
    struct cst_options_given given = {.first = 0};
    struct cst_err err = {0};
    json_t *file;

    ck_assert_int_eq(
        cst_options_load(gpt_options_table, &options, "/none.json", &given, &file, &err),
        CST_ENOTFOUND);
    ck_assert_str_eq(err.text, "/none.json: No such file or directory");
}
END_TEST

/* -- the command line ------------------------------------------------------------------------- */

/* The command line overrides the environment of ranks, and that overrides the file. The number of
 * threads in the environment is only a default. */
START_TEST(test_order)
{
    static const char text[] = "{\"data\": {\"data\": \"of the file\"},"
                               " \"optimizer\": {\"lr\": 0.25, \"min_lr\": 0.125},"
                               " \"parallel\": {\"rank\": 1, \"world\": 4, \"threads\": 5}}";
    const char *path = test_file(0, "job.json", text, strlen(text));
    struct gpt_options options;
    char line[600];

    (void)snprintf(line, sizeof line, "--lr 0.5 --config %s", path);
    options = test_options(line);
    ck_assert_str_eq(options.data, "of the file");
    ck_assert_double_eq(options.lr, 0.5);
    ck_assert_double_eq(options.min_lr, 0.125);
    ck_assert_uint_eq(options.job.rank, 1);
    ck_assert_uint_eq(options.job.world, 4);
    gpt_options_release(&options);
    ck_assert_int_eq(setenv("LOCAL_RANK", "2", 1), 0);
    ck_assert_int_eq(setenv("LOCAL_WORLD_SIZE", "300", 1), 0);
    ck_assert_int_eq(setenv("OMP_NUM_THREADS", "7", 1), 0);
    options = test_options(line);
    ck_assert_uint_eq(options.job.rank, 2);
    ck_assert_uint_eq(options.job.world, 300);
    ck_assert_uint_eq(options.threads, 5);
    gpt_options_release(&options);
    ck_assert_int_eq(setenv("WORLD_SIZE", "900", 1), 0);
    ck_assert_int_eq(setenv("RANK", "302", 1), 0);
    options = test_options(line);
    ck_assert_uint_eq(options.job.nodes.first_rank, 300);
    ck_assert_uint_eq(options.job.nodes.all_ranks, 900);
    gpt_options_release(&options);
    ck_assert_int_eq(setenv("WORLD_SIZE", "300", 1), 0);
    ck_assert_int_eq(setenv("RANK", "2", 1), 0);
    options = test_options(line);
    ck_assert_uint_eq(options.job.nodes.all_ranks, 0);
    gpt_options_release(&options);
    ck_assert_int_eq(setenv("WORLD_SIZE", "900", 1), 0);
    ck_assert_int_eq(setenv("RANK", "302", 1), 0);
    (void)snprintf(line, sizeof line, "--config %s --world 64 --rank 63", path);
    options = test_options(line);
    ck_assert_uint_eq(options.job.rank, 63);
    ck_assert_uint_eq(options.job.world, 64);
    ck_assert_uint_eq(options.job.nodes.all_ranks, 0);
    gpt_options_release(&options);
    /* Numbers that are those of the environment, and the number of copies, change no other one. */
    (void)snprintf(line, sizeof line, "--config %s --rank 2 --copies 2", path);
    options = test_options(line);
    ck_assert_uint_eq(options.job.world, 300);
    ck_assert_uint_eq(options.job.nodes.first_rank, 300);
    ck_assert_uint_eq(options.job.nodes.all_ranks, 900);
    ck_assert_uint_eq(options.job.nodes.copies, 2);
    gpt_options_release(&options);
}
END_TEST

/* The options in force, written and read, are the same, also those that others decide. */
START_TEST(test_in_force)
{
    static const char *const lines[] = {
        "--data text",
        "--data text --optimizer lion --experts 1 --device-update lent",
        "--data text --lora 8 --lr 0.3 --pool 30% --device-update auto --seed 18446744073709551615",
    };
    struct gpt_options before, after;
    char *text, *again, line[600];

    before = test_options(lines[_i]);
    text = saved(&before);
    (void)snprintf(line, sizeof line, "--config %s", test_file(0, "job.json", text, strlen(text)));
    after = test_options(line);
    again = saved(&after);
    ck_assert_str_eq(text, again);
    for (const struct cst_option *o = gpt_options_table; o->help != NULL; o++) {
        if (o->section != NULL && o->value.kind != CST_VALUE_TEXT) {
            suite_must(same_field(o, &before, &after), "--%s", o->name);
        }
    }
    gpt_options_release(&after);
    free(again);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *options = suite_case(suite, "options", NULL, NULL);
    TCase *errors = suite_case(suite, "mistakes", NULL, NULL);
    TCase *line = suite_case(suite, "command line", NULL, NULL);
    int n_rows = 0;

    while (gpt_options_table[n_rows].help != NULL) {
        n_rows++;
    }
    tcase_add_loop_test(options, test_round_trips, 0, n_rows);
    tcase_add_loop_test(errors, test_mistakes, 0, sizeof mistakes / sizeof *mistakes);
    tcase_add_test(errors, test_mark);
    tcase_add_test(errors, test_no_file);
    tcase_add_test(line, test_order);
    tcase_add_loop_test(line, test_in_force, 0, 3);
    return suite_run(suite);
}
