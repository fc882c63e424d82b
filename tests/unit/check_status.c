/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/status: the list of statuses, and messages. */
#include "cistern/status.h"
#include "proto/reason.h"
#include "proto/text.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <string.h>

/* Every status has its own number, name and description. The numbers are used in messages and count
 * up from 0. */
START_TEST(the_list_is_dense)
{
    int expected = 0;

#define CHECK(name, number, retryable, words)                                                      \
    ck_assert_int_eq(number, expected++);                                                          \
    ck_assert_str_eq(cst_status_name(CST_##name), #name);                                          \
    ck_assert_str_eq(cst_status_words(CST_##name), words);                                         \
    ck_assert(cst_status_retryable(CST_##name) == (retryable));
    CST_STATUS_MAP(CHECK)
#undef CHECK
}
END_TEST

/* A number that is not in the list has a name and a description, and is not temporary. */
START_TEST(unknown_numbers_have_words)
{
    ck_assert_str_eq(cst_status_name(-9999), "?");
    ck_assert_str_eq(cst_status_name(1), "?");
    ck_assert_uint_gt(strlen(cst_status_words(-9999)), 0);
    ck_assert(!cst_status_retryable(-9999));
}
END_TEST

/* A message is kept with its status, and a caller's prefix comes before it. */
START_TEST(words_are_prefixed)
{
    struct cst_err err = {0};

    ck_assert_int_eq(cst_err_set(&err, CST_EPOOL, "%d blocks", 3), CST_EPOOL);
    ck_assert_int_eq(err.status, CST_EPOOL);
    ck_assert_str_eq(err.text, "3 blocks");
    ck_assert_int_eq(cst_err_prefix(&err, "rank %d", 1), CST_EPOOL);
    ck_assert_str_eq(err.text, "rank 1: 3 blocks");
    ck_assert_int_eq(cst_err_errno(&err, CST_EIO, ENOENT, "%s", "/x"), CST_EIO);
    ck_assert_str_eq(err.text, "/x: No such file or directory");
}
END_TEST

/* An error has the reason that it was given first. A prefix keeps it, and the next error that is
 * written into the struct has none. */
START_TEST(reasons_are_kept)
{
    struct cst_err err = {0};

    ck_assert_int_eq(
        cst_err_give_reason(&err, CST_REASON_JOBS, cst_err_set(&err, CST_EBUDGET, "64 jobs")),
        CST_EBUDGET);
    ck_assert_int_eq(err.reason, CST_REASON_JOBS);
    ck_assert_int_eq(cst_err_give_reason(&err, CST_REASON_POOL, cst_err_prefix(&err, "job 'a'")),
                     CST_EBUDGET);
    ck_assert_int_eq(err.reason, CST_REASON_JOBS);
    (void)cst_err_set(&err, CST_EIO, "x");
    ck_assert_int_eq(err.reason, CST_REASON_NONE);
    ck_assert_int_eq(cst_err_give_reason(&err, CST_REASON_POOL, CST_OK), CST_OK);
    ck_assert_int_eq(err.reason, CST_REASON_NONE);
    (void)cst_err_give_reason(&err, CST_REASON_POOL, CST_EIO);
    (void)cst_err_errno(&err, CST_EIO, ENOENT, "x");
    ck_assert_int_eq(err.reason, CST_REASON_NONE);
    ck_assert_int_eq(cst_err_give_reason(NULL, CST_REASON_POOL, CST_EIO), CST_EIO);
}
END_TEST

/* The number of each reason stays as it is, and an unknown number is no reason. */
START_TEST(reasons_have_numbers)
{
    int next = 0;

#define CHECK_REASON(name, number, words)                                                          \
    ck_assert_int_eq(number, next++);                                                              \
    ck_assert_int_eq(cst_reason_of_number(number), CST_REASON_##name);                             \
    ck_assert_uint_gt(strlen(words), 0);
    CST_REASON_MAP(CHECK_REASON)
    ck_assert_int_eq(CST_REASON_LAST_MICRO_BATCH, 15);
    ck_assert_int_eq(cst_reason_of_number((uint32_t)next), CST_REASON_NONE);
    ck_assert_int_eq(cst_reason_of_number(UINT32_MAX), CST_REASON_NONE);
}
END_TEST

/* A message that is too long is cut and never written beyond its buffer. The buffer may be NULL. */
START_TEST(words_are_bounded)
{
    struct {
        struct cst_err err;
        char guard[16];
    } s;
    char words[1000];

    memset(words, 'w', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    memset(s.guard, 'g', sizeof s.guard);
    (void)cst_err_set(&s.err, CST_EIO, "%s", words);
    ck_assert_uint_eq(strlen(s.err.text), sizeof s.err.text - 1);
    (void)cst_err_prefix(&s.err, "%s", words);
    ck_assert_uint_eq(strlen(s.err.text), sizeof s.err.text - 1);
    (void)cst_err_errno(&s.err, CST_EIO, ENOENT, "%s", words);
    ck_assert_uint_eq(strlen(s.err.text), sizeof s.err.text - 1);
    for (size_t i = 0; i < sizeof s.guard; i++) {
        ck_assert_int_eq(s.guard[i], 'g');
    }
    ck_assert_int_eq(cst_err_set(NULL, CST_EIO, "x"), CST_EIO);
    ck_assert_int_eq(cst_err_errno(NULL, CST_EIO, ENOENT, "x"), CST_EIO);
}
END_TEST

/* Control characters and invalid UTF-8 are shown as hexadecimal bytes. Everything else is
 * unchanged. */
START_TEST(words_are_clean)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"gew\xc3\xb6hnlich \xe2\x82\xac \xf0\x9f\x92\xa7 'q\\'",
         "gew\xc3\xb6hnlich \xe2\x82\xac \xf0\x9f\x92\xa7 'q\\'"},
        {"\x1b[31mred\r\n", "\\x1b[31mred\\x0d\\x0a"},
        {"\x7f\xc2\x9b", "\\x7f\\xc2\\x9b"}, /* DEL and a C1 control */
        {"\xe2\x80\xae", "\\xe2\\x80\\xae"}, /* right-to-left override */
        {"\xff\xc3", "\\xff\\xc3"},          /* an invalid byte, and an incomplete character */
        {"\xc0\xaf", "\\xc0\\xaf"},          /* an overlong encoding */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* half of a surrogate pair */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond the last code point */
    };
    struct cst_err err = {0};
    char many[600];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        (void)cst_err_set(&err, CST_EINVAL, "%s", cases[i].in);
        ck_assert_str_eq(err.text, cases[i].out);
        ck_assert(cst_text_is_clean(err.text));
        (void)cst_err_prefix(&err, "a\tb");
        ck_assert_int_eq(strncmp(err.text, "a\\x09b: ", 8), 0);
        ck_assert_str_eq(err.text + 8, cases[i].out);
    }
    memset(many, '\a', sizeof many - 1);
    many[sizeof many - 1] = '\0';
    (void)cst_err_set(&err, CST_EINVAL, "%s", many);
    ck_assert_uint_eq(strlen(err.text), (sizeof err.text - 1) / 4 * 4);
    ck_assert_str_eq(err.text + strlen(err.text) - 4, "\\x07");
}
END_TEST

/* A text fits if it is UTF-8, control characters included, and not too long. */
START_TEST(texts_fit)
{
    ck_assert(cst_text_fits(NULL, 0));
    ck_assert(cst_text_fits("", 0));
    ck_assert(cst_text_fits("{\n\t\"a\": 1}", 10));
    ck_assert(!cst_text_fits("{\n\t\"a\": 1}", 9));
    ck_assert(cst_text_fits("\xe2\x82\xac", 3));
    ck_assert(!cst_text_fits("\xe2\x82\xac", 2));
    ck_assert(!cst_text_fits("a\xff", 9));
    ck_assert(!cst_text_fits("a\xe2\x82", 9));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status");
    TCase *tc = suite_case(suite, "status", NULL, NULL);

    tcase_add_test(tc, the_list_is_dense);
    tcase_add_test(tc, unknown_numbers_have_words);
    tcase_add_test(tc, words_are_prefixed);
    tcase_add_test(tc, reasons_are_kept);
    tcase_add_test(tc, reasons_have_numbers);
    tcase_add_test(tc, words_are_bounded);
    tcase_add_test(tc, words_are_clean);
    tcase_add_test(tc, texts_fit);
    return suite_run(suite);
}
