/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the strict JSON reader: values that it accepts, and its messages for others. */
#include "proto/json_fields.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const keys[] = {"n", "x", "list", "name", NULL};

static json_t *parse(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);

    ck_assert_ptr_nonnull(value);
    return value;
}

/* An unknown key, and a value that is not an object, are refused by name. */
START_TEST(test_object)
{
    struct cst_err err = {0};
    json_t *good = parse("{\"n\": 1}"), *more = parse("{\"n\": 1, \"m\": 2}"), *list = parse("[]");

    ck_assert_int_eq(cst_json_object(good, "a[1]", keys, &err), CST_OK);
    ck_assert_int_eq(cst_json_object(more, "a[1]", keys, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "a[1]: unknown key 'm'");
    ck_assert_int_eq(cst_json_object(list, "", keys, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "the file: wanted an object, not an array");
    json_decref(good);
    json_decref(more);
    json_decref(list);
}
END_TEST

/* Integers have limits and neither fraction nor sign. A missing one gets the caller's default. */
START_TEST(test_u64)
{
    struct cst_err err = {0};
    json_t *object = parse("{\"n\": 8, \"x\": 1.5, \"list\": -1}");
    uint64_t n = 77;

    ck_assert_int_eq(cst_json_u64(object, "", "n", CST_JSON_REQUIRED, 8, &n, &err), CST_OK);
    ck_assert_uint_eq(n, 8);
    ck_assert_int_eq(cst_json_u64(object, "t", "n", CST_JSON_REQUIRED, 7, &n, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "t.n: 8 is not within 0 to 7");
    ck_assert_int_eq(cst_json_u64(object, "", "x", CST_JSON_REQUIRED, 8, &n, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "x: wanted a whole number, not a fraction");
    ck_assert_int_eq(cst_json_u64(object, "", "list", CST_JSON_REQUIRED, 8, &n, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "list: -1 is not within 0 to 8");
    ck_assert_int_eq(cst_json_u64(object, "", "name", CST_JSON_REQUIRED, 8, &n, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "the file: no 'name'");
    n = 77;
    ck_assert_int_eq(cst_json_u64(object, "", "name", CST_JSON_OPTIONAL, 8, &n, &err), CST_OK);
    ck_assert_uint_eq(n, 77);
    json_decref(object);
}
END_TEST

/* Numbers may be integers, but neither negative nor text. */
START_TEST(test_real)
{
    struct cst_err err = {0};
    json_t *object = parse("{\"n\": 8, \"x\": -0.5, \"name\": \"1\"}");
    double x = 0;

    ck_assert_int_eq(cst_json_real(object, "", "n", CST_JSON_REQUIRED, &x, &err), CST_OK);
    ck_assert_double_eq(x, 8);
    ck_assert_int_eq(cst_json_real(object, "r", "x", CST_JSON_REQUIRED, &x, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "r.x: -0.5 is negative or not finite");
    ck_assert_int_eq(cst_json_real(object, "", "name", CST_JSON_REQUIRED, &x, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "name: wanted a number, not text");
    ck_assert_double_eq(x, 8);
    json_decref(object);
}
END_TEST

/* Text must fit and have no control characters. */
START_TEST(test_text)
{
    struct cst_err err = {0};
    json_t *object = parse("{\"name\": \"abc\", \"n\": \"a\\nb\", \"x\": \"\"}");
    char out[4] = "";

    ck_assert_int_eq(cst_json_text(object, "", "name", CST_JSON_REQUIRED, out, 4, &err), CST_OK);
    ck_assert_str_eq(out, "abc");
    ck_assert_int_eq(cst_json_text(object, "", "name", CST_JSON_REQUIRED, out, 3, &err),
                     CST_EINVAL);
    ck_assert_str_eq(err.text, "name: wanted 1 to 2 printable characters, not 3");
    ck_assert_int_eq(cst_json_text(object, "", "n", CST_JSON_REQUIRED, out, 4, &err), CST_EINVAL);
    ck_assert_int_eq(cst_json_text(object, "", "x", CST_JSON_REQUIRED, out, 4, &err), CST_EINVAL);
    json_decref(object);
}
END_TEST

/* Arrays have a limited number of values. */
START_TEST(test_array)
{
    struct cst_err err = {0};
    json_t *object = parse("{\"list\": [1, 2], \"n\": 1}");
    const json_t *list = NULL;

    ck_assert_int_eq(cst_json_array(object, "", "list", CST_JSON_REQUIRED, 1, 2, &list, &err),
                     CST_OK);
    ck_assert_uint_eq(json_array_size(list), 2);
    ck_assert_int_eq(cst_json_array(object, "p", "list", CST_JSON_REQUIRED, 3, 8, &list, &err),
                     CST_EINVAL);
    ck_assert_str_eq(err.text, "p.list: 2 values, allowed are 3 to 8");
    ck_assert_int_eq(cst_json_array(object, "", "n", CST_JSON_REQUIRED, 0, 1, &list, &err),
                     CST_EINVAL);
    ck_assert_str_eq(err.text, "n: wanted an array, not a whole number");
    ck_assert_int_eq(cst_json_array(object, "", "x", CST_JSON_OPTIONAL, 0, 1, &list, &err), CST_OK);
    ck_assert_ptr_null(list);
    json_decref(object);
}
END_TEST

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* A syntax error in a file is reported with line and column. A repeated key is a syntax error, and
 * so is \u0000; a byte order mark at the beginning is none. */
START_TEST(test_load)
{
    struct cst_err err = {0};
    char path[] = "/tmp/cistern-check.XXXXXX";
    json_t *root = NULL;
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    write_text(path, "{\n  \"n\": 1,\n  oops\n}\n");
    ck_assert_int_eq(cst_json_load(&root, path, &err), CST_EINVAL);
    ck_assert_int_eq(strncmp(err.text, path, strlen(path)), 0);
    ck_assert_int_eq(strncmp(err.text + strlen(path), ":3:", 3), 0);
    write_text(path, "{\"n\": 1, \"n\": 2}");
    ck_assert_int_eq(cst_json_load(&root, path, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "duplicate"));
    ck_assert_ptr_null(root);
    write_text(path, "{\"n\": \"\\u0000\"}");
    ck_assert_int_eq(cst_json_load(&root, path, &err), CST_EINVAL);
    ck_assert_str_eq(err.text + strlen(path), ":1:14: \\u0000 is not allowed in a text");
    write_text(path, "");
    ck_assert_int_eq(cst_json_load(&root, path, &err), CST_EINVAL);
    write_text(path, "\xef\xbb\xbf");
    ck_assert_int_eq(cst_json_load(&root, path, &err), CST_EINVAL);
    ck_assert_ptr_null(root);
    write_text(path, "\xef\xbb\xbf{\"n\": 1}");
    ck_assert_int_eq(cst_json_load(&root, path, &err), CST_OK);
    json_decref(root);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(cst_json_load(&root, path, &err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_json_load(&root, "/", &err), CST_EIO);
}
END_TEST

/* Numbers for which there is no type. */
static const struct {
    const char *text, *words;
} numbers[] = {
#define WHOLE " is not within -9223372036854775808 to 9223372036854775807"
#define REAL " is not within -1.79769e+308 to 1.79769e+308"
    {"[9223372036854775807]", NULL},
    {"[-9223372036854775808, 1e308]", NULL},
    {"9223372036854775808", "f:1:19: 9223372036854775808" WHOLE},
    {"{\"a\":\n -9223372036854775809}", "f:2:21: a: -9223372036854775809" WHOLE},
    {"{\"x\": {\"k\": [1, {}]}, \"a\": [{\"b\": 1}, {\"c\": [\"[\", 2, 99999999999999999999]}]}",
     "f:1:73: a[1].c[2]: 99999999999999999999" WHOLE},
    {"{\"a\\\"\": \"}\", \"b\\\\\": {\"c,\": \"k\", \"d\": 1e400}}", "f:1:42: b\\\\.d: 1e400" REAL},
    {"[[[[[[[[-1e999]]]]]]]]", "f:1:14: [0][0][0][0][0][0][0][0]: -1e999" REAL},
    {"[[[[[[[[[7, [], 1e999]]]]]]]]]", "f:1:21: 1e999" REAL},
    {"\xef\xbb\xbf[12345678901234567890123456789012345678901234567890]",
     "f:1:51: [0]: 1234567890123456789012345678901234567890..." WHOLE},
#undef WHOLE
#undef REAL
};

/* The error names the file, the place, the number and the limits. */
START_TEST(test_number)
{
    struct cst_err err = {0};
    json_t *root = NULL;
    const char *text = numbers[_i].text, *words = numbers[_i].words;
    int rc = cst_json_parse(&root, text, strlen(text), "f", &err);

    if (words == NULL) {
        ck_assert_msg(rc == CST_OK, "%s", err.text);
        json_decref(root);
    } else {
        ck_assert_int_eq(rc, CST_EINVAL);
        ck_assert_str_eq(err.text, words);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_fields");
    TCase *tcase = suite_case(suite, "json_fields", NULL, NULL);

    tcase_add_test(tcase, test_object);
    tcase_add_test(tcase, test_u64);
    tcase_add_test(tcase, test_real);
    tcase_add_test(tcase, test_text);
    tcase_add_test(tcase, test_array);
    tcase_add_test(tcase, test_load);
    tcase_add_loop_test(tcase, test_number, 0, sizeof numbers / sizeof numbers[0]);
    return suite_run(suite);
}
