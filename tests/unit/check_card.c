/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/plan/card: what is set aside of a GPU's memory, and the words for it. */
#include "offload/plan/card.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static struct cst_card card;
static char words[CST_CARD_WORDS];

static void setup(void)
{
    cst_card_init(&card, 80 * GIB);
}

/* Without workers only the engine has a context. */
START_TEST(engine_alone)
{
    ck_assert_uint_eq(cst_card_bytes(&card), 512 * MIB);
    cst_card_words(&card, words, sizeof words);
    ck_assert_str_eq(words, "512.0 MiB for 1 CUDA context");
}
END_TEST

/* Each rank has a context, a workspace and the activations that it declares. */
START_TEST(declared)
{
    cst_card_add_rank(&card, 3 * GIB);
    cst_card_add_rank(&card, 1 * GIB);
    ck_assert_uint_eq(cst_card_bytes(&card), (3 * 512 + 2 * 64) * MIB + 4 * GIB);
    cst_card_words(&card, words, sizeof words);
    ck_assert_str_eq(words, "1.5 GiB for 3 CUDA contexts, 128.0 MiB for workspaces of libraries, "
                            "4.0 GiB for activations");
}
END_TEST

/* Ranks that declare nothing together get a tenth of the card, however many they are. */
START_TEST(undeclared)
{
    cst_card_add_rank(&card, 0);
    cst_card_add_rank(&card, 2 * GIB);
    cst_card_add_rank(&card, 0);
    ck_assert_uint_eq(cst_card_bytes(&card), (4 * 512 + 3 * 64) * MIB + 10 * GIB);
    cst_card_words(&card, words, sizeof words);
    ck_assert_ptr_nonnull(
        strstr(words, "2.0 GiB for activations, 8.0 GiB for activations of 2 ranks without a"));
}
END_TEST

/* On a small card contexts and workspaces are shares of it. */
START_TEST(small)
{
    cst_card_init(&card, 64 * MIB);
    cst_card_add_rank(&card, 1);
    ck_assert_uint_eq(cst_card_bytes(&card), 2 * 8 * MIB + MIB + 1);
}
END_TEST

/* Numbers that no card has do not wrap around. */
START_TEST(too_large)
{
    for (int i = 0; i < 3; i++) {
        cst_card_add_rank(&card, UINT64_MAX - 5);
    }
    ck_assert_uint_gt(cst_card_bytes(&card), UINT64_MAX / 1024);
    ck_assert_uint_lt(cst_card_bytes(&card), UINT64_MAX / 512);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("card");
    TCase *tcase = suite_case(suite, "card", setup, NULL);

    tcase_add_test(tcase, engine_alone);
    tcase_add_test(tcase, declared);
    tcase_add_test(tcase, undeclared);
    tcase_add_test(tcase, small);
    tcase_add_test(tcase, too_large);
    return suite_run(suite);
}
