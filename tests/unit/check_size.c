/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/size.h"
#include "tests/lib/suite.h"

#include <string.h>

static const uint64_t K = UINT64_C(1) << 10, M = UINT64_C(1) << 20, G = UINT64_C(1) << 30,
                      T = UINT64_C(1) << 40;
static struct cst_err err;

static uint64_t size_of(const char *text, uint64_t whole)
{
    uint64_t bytes = 77;

    ck_assert_msg(cst_size_parse(text, whole, &bytes, &err) == CST_OK, "%s: %s", text, err.text);
    return bytes;
}

/* Units are powers of 1024, with or without "B" or "iB", in upper or lower case. Numbers may have a
 * fraction. */
START_TEST(sizes_are_read)
{
    ck_assert_uint_eq(size_of("0", 0), 0);
    ck_assert_uint_eq(size_of("4096", 0), 4096);
    ck_assert_uint_eq(size_of("3k", 0), 3 * K);
    ck_assert_uint_eq(size_of("5MB", 0), 5 * M);
    ck_assert_uint_eq(size_of("1.5G", 0), G + G / 2);
    ck_assert_uint_eq(size_of("1.5GiB", 0), G + G / 2);
    ck_assert_uint_eq(size_of("0.25gib", 0), G / 4);
    ck_assert_uint_eq(size_of("1.3K", 0), 1331); /* rounded down to whole bytes */
    ck_assert_uint_eq(size_of("2T", 0), 2 * T);
    ck_assert_uint_eq(size_of("8388608T", 0), UINT64_C(1) << 63);
    ck_assert_uint_eq(size_of("9007199254740993", 0), UINT64_C(9007199254740993)); /* 2^53 + 1 */
}
END_TEST

/* A percentage is of the whole, if there is one. */
START_TEST(percentages_are_of_the_whole)
{
    double percent = -1;

    ck_assert_uint_eq(size_of("50%", 1000), 500);
    ck_assert_uint_eq(size_of("12.5%", 1000), 125);
    ck_assert_uint_eq(size_of("100%", UINT64_C(1) << 62), UINT64_C(1) << 62);
    ck_assert(cst_size_percent("24.7%", &percent));
    ck_assert_double_eq_tol(percent, 24.7, 1e-12);
    ck_assert(cst_size_percent("150%", &percent));
    ck_assert(!cst_size_percent("150", &percent));
    ck_assert(!cst_size_percent("-1%", &percent));
    ck_assert(!cst_size_percent("1%%", &percent));
}
END_TEST

static const struct {
    const char *text;
    uint64_t whole;
} bad[] = {
    {"", 0},      {"-1", 0},       {" 1", 0},
    {"1 ", 0},    {"+1", 0},       {"1.5", 0},
    {"1.", 0},    {".5G", 0},      {"1,5G", 0},
    {"0x10", 0},  {"1e3", 0},      {"inf", 0},
    {"4Q", 0},    {"4KQ", 0},      {"4iB", 0},
    {"4KiBB", 0}, {"8388609T", 0}, {"99999999999999999999", 0},
    {"50%", 0},   {"101%", 9},     {"-5%", 9},
    {"5%K", 9},   {"K", 0},        {"1.5.5G", 0},
};

/* An invalid size is refused with the text and the valid forms. The output is not changed. */
START_TEST(the_rest_is_refused)
{
    uint64_t bytes = 77;

    ck_assert_int_eq(cst_size_parse(bad[_i].text, bad[_i].whole, &bytes, &err), CST_EINVAL);
    ck_assert_uint_eq(bytes, 77);
    ck_assert_ptr_nonnull(strstr(err.text, bad[_i].text));
    ck_assert_ptr_nonnull(strstr(err.text, "1.5GiB"));
    ck_assert_int_eq(strstr(err.text, "40%") != NULL, bad[_i].whole > 0);
}
END_TEST

/* A given word can stand for a size. The error then mentions the word. */
START_TEST(a_word_may_stand_for_a_size)
{
    uint64_t bytes = 0;

    ck_assert_int_eq(cst_size_parse_or("auto", "auto", 9, &bytes, &err), CST_OK);
    ck_assert_uint_eq(bytes, 9);
    ck_assert_int_eq(cst_size_parse_or("2K", "auto", 9, &bytes, &err), CST_OK);
    ck_assert_uint_eq(bytes, 2 * K);
    ck_assert_int_eq(cst_size_parse_or("atuo", "auto", 9, &bytes, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "'auto'"));
}
END_TEST

/* Sizes are written with the unit that fits. */
START_TEST(sizes_are_written)
{
    char buf[CST_SIZE_TEXT];

    ck_assert_str_eq(cst_size_text(0, buf), "0 B");
    ck_assert_str_eq(cst_size_text(1023, buf), "1023 B");
    ck_assert_str_eq(cst_size_text(1536, buf), "1.5 KiB");
    ck_assert_str_eq(cst_size_text(UINT64_MAX, buf), "16777216.0 TiB");
}
END_TEST

/* A size that must be exact has its bytes, too. */
START_TEST(exact_sizes_are_written)
{
    char buf[CST_SIZE_EXACT];

    ck_assert_str_eq(cst_size_exact(0, buf), "0 bytes");
    ck_assert_str_eq(cst_size_exact(1023, buf), "1023 bytes");
    ck_assert_str_eq(cst_size_exact(1536, buf), "1.5 KiB (1536 bytes)");
    ck_assert_str_eq(cst_size_exact(UINT64_MAX, buf),
                     "16777216.0 TiB (18446744073709551615 bytes)");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("size");
    TCase *tc = suite_case(suite, "size", NULL, NULL);

    tcase_add_test(tc, sizes_are_read);
    tcase_add_test(tc, percentages_are_of_the_whole);
    tcase_add_loop_test(tc, the_rest_is_refused, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(tc, a_word_may_stand_for_a_size);
    tcase_add_test(tc, sizes_are_written);
    tcase_add_test(tc, exact_sizes_are_written);
    return suite_run(suite);
}
