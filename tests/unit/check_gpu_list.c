/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/settings/gpu_list: the output of a probe, the GPUs that the configuration
 * selects, and the GPU that a worker names. */
#include "daemon/settings/gpu_list.h"
#include "tests/lib/suite.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <string.h>

#define A "GPU-aaaaaaaa-0000-0000-0000-000000000001"
#define B "GPU-aaaabbbb-0000-0000-0000-000000000002"
#define C "MIG-cccccccc-0000-0000-0000-000000000003"

static const char three[] =
    "{\"gpus\": [{\"index\": 0, \"uuid\": \"" A "\", \"name\": \"NVIDIA A\", "
    "\"memory_bytes\": 1000000, \"node\": 1, \"mps\": true}, {\"index\": 1, \"uuid\": \"" B "\", "
    "\"name\": \"NVIDIA B\", \"memory_bytes\": 2000000}, {\"index\": 2, \"uuid\": \"" C "\", "
    "\"name\": \"NVIDIA C\", \"memory_bytes\": 500000}], \"driver\": 13000}\n";

static struct cstd_gpu_list list;
static struct cstd_gpu *gpu;
static struct cst_err err;

static int parse(const char *text)
{
    return cstd_gpu_list_parse(text, strlen(text), &list, &err);
}

static void setup(void)
{
    err = (struct cst_err){0};
    gpu = NULL;
    ck_assert_int_eq(parse(three), CST_OK);
}

static void says(const char *what)
{
    ck_assert_msg(strstr(err.text, what) != NULL, "'%s' does not say '%s'", err.text, what);
}

START_TEST(a_list_is_read)
{
    ck_assert_uint_eq(list.n, 3);
    ck_assert_uint_eq(list.driver, 13000);
    ck_assert_str_eq(list.v[1].uuid, B);
    ck_assert_str_eq(list.v[1].name, "NVIDIA B");
    ck_assert_uint_eq(list.v[1].memory_bytes, 2000000);
    ck_assert_int_eq(list.v[0].os_node, 1);
    ck_assert(list.v[0].mps && !list.v[1].mps);
    ck_assert_int_eq(list.v[1].os_node, -1);
}
END_TEST

/* GPUs that cannot access others say which. Selection renumbers them, and can forbid all access. */
START_TEST(unreachable)
{
    static const char text[] =
        "{\"gpus\": [{\"uuid\": \"" A "\", \"name\": \"x\", \"memory_bytes\": 5, "
        "\"unreachable\": [2]}, {\"uuid\": \"" B "\", \"name\": \"x\", "
        "\"memory_bytes\": 5, \"unreachable\": []}, {\"uuid\": \"" C "\", \"name\": \"x\", "
        "\"memory_bytes\": 5, \"unreachable\": [0, 1]}]}";

    ck_assert_int_eq(parse(text), CST_OK);
    ck_assert_uint_eq(word_of(&list.v[0].unreachable), 1 << 2);
    ck_assert_uint_eq(word_of(&list.v[1].unreachable), 0);
    ck_assert_uint_eq(word_of(&list.v[2].unreachable), 3);
    ck_assert_int_eq(cstd_gpu_list_select(&list, "2, 0", "50%", &err), CST_OK);
    ck_assert_uint_eq(word_of(&list.v[0].unreachable), 1 << 1);
    ck_assert_uint_eq(word_of(&list.v[1].unreachable), 1 << 0);
    ck_assert_int_eq(parse(text), CST_OK);
    ck_assert_int_eq(cstd_gpu_list_select(&list, "all", "50%", &err), CST_OK);
    ck_assert_uint_eq(word_of(&list.v[2].unreachable), 3);
    cstd_gpu_list_separate(&list);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_uint_eq(word_of(&list.v[i].unreachable), 7 & ~(1u << i));
    }
}
END_TEST

/* An error of the engine is passed on unchanged. */
START_TEST(an_error_is_a_sentence)
{
    ck_assert_int_eq(parse("{\"error\": \"no NVIDIA driver: libcuda.so.1 is not there\"}"),
                     CST_EUNSUPPORTED);
    ck_assert_str_eq(err.text, "no NVIDIA driver: libcuda.so.1 is not there");
    ck_assert_uint_eq(list.n, 3); /* the list is unchanged */
}
END_TEST

START_TEST(nonsense_is_refused)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"gpus\": []}",
        "{\"gpus\": 3}",
        "{\"gpus\": [3]}",
        "3",
        "{\"gpus\": [{\"uuid\": \"\", \"name\": \"x\", \"memory_bytes\": 5}]}",
        "{\"gpus\": [{\"uuid\": \"GPU-1\", \"memory_bytes\": 5}]}",
        "{\"gpus\": [{\"uuid\": \"GPU-1\", \"name\": \"x\", \"memory_bytes\": -5}]}",
        "{\"gpus\": [{\"uuid\": \"GPU-1\", \"name\": \"x\", \"memory_bytes\": \"many\"}]}",
        "{\"gpus\": [{\"uuid\": \"GPU-1\", \"name\": \"x\", \"memory_bytes\": 5, "
        "\"unreachable\": [-1]}]}",
        "{\"gpus\": [{\"uuid\": \"GPU-1\", \"name\": \"x\", \"memory_bytes\": 5, "
        "\"unreachable\": [\"GPU-2\"]}]}"};

    ck_assert_int_eq(parse(texts[_i]), CST_EPROTO);
    ck_assert_uint_eq(list.n, 3);
}
END_TEST

/* All GPUs are selected, each with a percentage of its own memory. */
START_TEST(all_with_a_percentage)
{
    ck_assert_int_eq(cstd_gpu_list_select(&list, "all", "90%", &err), CST_OK);
    ck_assert_uint_eq(list.n, 3);
    ck_assert_uint_eq(list.v[0].pool.limit, 900000);
    ck_assert_uint_eq(list.v[2].pool.limit, 450000);
    ck_assert_ptr_nonnull(strstr(list.v[2].pool.name, C));
}
END_TEST

/* The memory can be a number of bytes, at most that of the GPU. */
START_TEST(bytes)
{
    ck_assert_int_eq(cstd_gpu_list_select(&list, "all", "700000", &err), CST_OK);
    ck_assert_uint_eq(list.v[0].pool.limit, 700000);
    ck_assert_uint_eq(list.v[2].pool.limit, 500000);
}
END_TEST

/* GPUs can be selected by UUIDs, beginnings of UUIDs and numbers, in the order of the list. A GPU
 * named twice is selected once. */
START_TEST(some)
{
    ck_assert_int_eq(cstd_gpu_list_select(&list, "mig-cc, 0 " A, "50%", &err), CST_OK);
    ck_assert_uint_eq(list.n, 2);
    ck_assert_str_eq(list.v[0].uuid, C);
    ck_assert_uint_eq(list.v[0].index, 0);
    ck_assert_str_eq(list.v[1].uuid, A);
    ck_assert_uint_eq(list.v[1].index, 1);
    ck_assert_uint_eq(list.v[1].pool.limit, 500000);
}
END_TEST

/* A GPU that does not exist is named in the error, with those that exist. The others are kept. */
START_TEST(one_is_missing)
{
    ck_assert_int_eq(cstd_gpu_list_select(&list, "1, GPU-dddd, 7", "50%", &err), CST_ENOTFOUND);
    says("GPU-dddd");
    says(A);
    ck_assert_uint_eq(list.n, 1);
    ck_assert_str_eq(list.v[0].uuid, B);
}
END_TEST

/* The device that a worker asks for is found. */
START_TEST(found)
{
    static const struct {
        const char *device;
        uint32_t rank;
        unsigned index;
    } rows[] = {{"cuda", 0, 0}, {"cuda", 4, 1},      {"cuda:2", 1, 2},   {B, 0, 1},
                {"MIG-", 9, 9}, {"gpu-AAAAb", 0, 1}, {"GPU-aaaaa", 5, 0}};

    if (rows[_i].index == 9) { /* the kind alone selects no device */
        ck_assert_int_eq(cstd_gpu_list_find(&list, rows[_i].device, 0, &gpu, &err), CST_ENOTFOUND);
        return;
    }
    ck_assert_int_eq(cstd_gpu_list_find(&list, rows[_i].device, rows[_i].rank, &gpu, &err), CST_OK);
    ck_assert_uint_eq(gpu->index, rows[_i].index);
}
END_TEST

START_TEST(not_found)
{
    ck_assert_int_eq(cstd_gpu_list_find(&list, "cuda:3", 0, &gpu, &err), CST_ENOTFOUND);
    says("cuda:3");
    says("cuda:2 " C);
    ck_assert_int_eq(cstd_gpu_list_find(&list, "cuda:", 0, &gpu, &err), CST_ENOTFOUND);
    ck_assert_int_eq(cstd_gpu_list_find(&list, "cuda:1x", 0, &gpu, &err), CST_ENOTFOUND);
    ck_assert_int_eq(cstd_gpu_list_find(&list, "GPU-eeee", 0, &gpu, &err), CST_ENOTFOUND);
    ck_assert_int_eq(cstd_gpu_list_find(&list, "GPU-aaaa", 0, &gpu, &err), CST_EINVAL);
    says(B);
    ck_assert_ptr_null(gpu);
}
END_TEST

/* The syntax of the configuration's list is checked without any GPU. */
START_TEST(checked)
{
    static const char *const good[] = {"all", "none", "0", "0,1, 2", A " " B, "MIG-1, 3"};
    static const char *const bad[] = {"", ",", "some", "all, 1", "-1", "1234567", "GPU-", "cuda:0"};

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ck_assert_msg(cstd_gpu_list_check(good[i], &err) == CST_OK, "%s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_msg(cstd_gpu_list_check(bad[i], &err) == CST_EINVAL, "%s", bad[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_list");
    TCase *tcase = suite_case(suite, "gpu_list", setup, NULL);

    tcase_add_test(tcase, a_list_is_read);
    tcase_add_test(tcase, unreachable);
    tcase_add_test(tcase, an_error_is_a_sentence);
    tcase_add_loop_test(tcase, nonsense_is_refused, 0, 14);
    tcase_add_test(tcase, all_with_a_percentage);
    tcase_add_test(tcase, bytes);
    tcase_add_test(tcase, some);
    tcase_add_test(tcase, one_is_missing);
    tcase_add_loop_test(tcase, found, 0, 7);
    tcase_add_test(tcase, not_found);
    tcase_add_test(tcase, checked);
    return suite_run(suite);
}
