/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the choice how the ranks of a group exchange arrays, and of its reason. */
#include "offload/plan/transport.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

#define NCCL 22809

static struct cst_transport_rank ranks[3];
static char why[CST_TRANSPORT_WORDS];

/* Three ranks, each with a GPU of its own and NCCL, which see all GPUs. */
static void setup(void)
{
    static const char *const gpus[] = {"GPU-a", "GPU-b", "GPU-c"};

    for (uint32_t i = 0; i < 3; i++) {
        ranks[i] = (struct cst_transport_rank){
            .name = 4 + i, .gpu = gpus[i], .nccl = NCCL, .reads_peers = true};
        ranks[i].reachable = gpus;
        ranks[i].n_reachable = 3;
    }
}

static void expect(enum cst_transport transport, const char *words)
{
    ck_assert_int_eq(cst_transport_choose(ranks, 3, why), transport);
    ck_assert_str_eq(why, words);
}

/* Ranks with a GPU each and the same NCCL use it. */
START_TEST(nccl)
{
    expect(CST_TRANSPORT_NCCL, "each rank has a GPU and NCCL 2.28.9");
    ck_assert_str_eq(cst_transport_name(CST_TRANSPORT_NCCL), "NCCL");
}
END_TEST

/* A rank in a group of its own needs no other GPU. */
START_TEST(one_rank)
{
    ck_assert_int_eq(cst_transport_choose(ranks, 1, why), CST_TRANSPORT_NCCL);
}
END_TEST

/* Ranks with all arrays in host memory share memory. */
START_TEST(host)
{
    for (int i = 0; i < 3; i++) {
        ranks[i] = (struct cst_transport_rank){.name = (uint32_t)i};
    }
    expect(CST_TRANSPORT_HOST, "all ranks have their arrays in host memory");
}
END_TEST

/* One rank in host memory: the others stage. */
START_TEST(mixed)
{
    ranks[1].gpu = NULL;
    ranks[1].nccl = 0;
    expect(CST_TRANSPORT_STAGED, "rank 5 has its arrays in host memory");
}
END_TEST

/* One rank without NCCL, with or without a cause: all of them use memory of the GPUs. */
START_TEST(no_library)
{
    ranks[2].nccl = 0;
    ranks[2].nccl_error = "libnccl.so.2: cannot open shared object file";
    expect(CST_TRANSPORT_PEERS,
           "rank 6 cannot use NCCL: libnccl.so.2: cannot open shared object file");
    ranks[2].nccl_error = NULL;
    expect(CST_TRANSPORT_PEERS, "rank 6 cannot use NCCL: the cause is not known");
    ck_assert_str_eq(cst_transport_name(CST_TRANSPORT_PEERS), "memory of the GPUs");
}
END_TEST

/* Ranks with different versions. */
START_TEST(versions)
{
    ranks[2].nccl = 21805;
    expect(CST_TRANSPORT_PEERS, "rank 4 has NCCL 2.28.9, and rank 6 has NCCL 2.18.5");
}
END_TEST

/* Two ranks on one GPU. */
START_TEST(shared_gpu)
{
    ranks[2].gpu = "GPU-b";
    expect(CST_TRANSPORT_PEERS,
           "ranks 5 and 6 are both on GPU-b, and NCCL needs a GPU for each rank");
}
END_TEST

/* A rank that wants sums in the order of the ranks, which NCCL does not promise. */
START_TEST(in_order)
{
    ranks[1].in_order = true;
    expect(CST_TRANSPORT_PEERS, "rank 5 wants sums in the order of the ranks");
}
END_TEST

/* A rank whose library is older, in a group that cannot use NCCL. */
START_TEST(old_library)
{
    ranks[1].reads_peers = false;
    expect(CST_TRANSPORT_NCCL, "each rank has a GPU and NCCL 2.28.9");
    ranks[0].in_order = true;
    expect(CST_TRANSPORT_STAGED,
           "rank 4 wants sums in the order of the ranks; the library of rank 5 "
           "does not read memory of other ranks");
}
END_TEST

/* Ranks that could not use NCCL and memory of the GPUs: both reasons are given, however long. */
START_TEST(refused)
{
    char words[2][400];

    ranks[0].nccl = 0;
    ranks[0].nccl_error = "joining a communicator: internal error";
    expect(CST_TRANSPORT_PEERS, "rank 4 cannot use NCCL: joining a communicator: internal error");
    ranks[2].reads_peers = false;
    ranks[2].peers_error = "importing 16777216 bytes";
    expect(CST_TRANSPORT_STAGED,
           "rank 4 cannot use NCCL: joining a communicator: internal error; rank 6 cannot use "
           "memory of the GPUs: importing 16777216 bytes");
    for (int i = 0; i < 2; i++) {
        memset(words[i], 'a' + i, sizeof words[i]);
        words[i][319] = '\0';
    }
    ranks[0].nccl_error = words[0];
    ranks[2].peers_error = words[1];
    ck_assert_int_eq(cst_transport_choose(ranks, 3, why), CST_TRANSPORT_STAGED);
    ck_assert_ptr_nonnull(strstr(why, words[0]));
    ck_assert_ptr_nonnull(strstr(why, words[1]));
}
END_TEST

/* A rank that does not see another one's GPU cannot map its memory, and NCCL can use it all the
 * same. */
START_TEST(hidden)
{
    ranks[2].n_reachable = 1;
    expect(CST_TRANSPORT_NCCL, "each rank has a GPU and NCCL 2.28.9");
    ranks[0].in_order = true;
    expect(CST_TRANSPORT_STAGED,
           "rank 4 wants sums in the order of the ranks; rank 6 does not see GPU-b of rank 5");
}
END_TEST

/* More ranks than a message has descriptors for. */
START_TEST(many_ranks)
{
    struct cst_transport_rank many[CST_TRANSPORT_MAX_PEERS + 1];

    for (uint32_t i = 0; i < CST_TRANSPORT_MAX_PEERS + 1; i++) {
        many[i] = (struct cst_transport_rank){.name = i, .gpu = "GPU-a", .reads_peers = true};
    }
    ck_assert_int_eq(cst_transport_choose(many, CST_TRANSPORT_MAX_PEERS, why), CST_TRANSPORT_PEERS);
    ck_assert_int_eq(cst_transport_choose(many, CST_TRANSPORT_MAX_PEERS + 1, why),
                     CST_TRANSPORT_STAGED);
    ck_assert_str_eq(why,
                     "rank 0 cannot use NCCL: the cause is not known; memory of GPUs is for at "
                     "most 15 ranks, and these are 16");
}
END_TEST

/* Two GPUs that cannot access each other's memory, as either of them says. GPUs of no rank do not
 * count. */
START_TEST(unreachable)
{
    static const char *const others[] = {"GPU-x", "GPU-b"}, *const none[] = {"GPU-x"};

    ranks[0].unreachable = none;
    ranks[0].n_unreachable = 1;
    ck_assert_int_eq(cst_transport_choose(ranks, 3, why), CST_TRANSPORT_NCCL);
    ranks[2].unreachable = others;
    ranks[2].n_unreachable = 2;
    expect(CST_TRANSPORT_STAGED,
           "GPU-b of rank 5 and GPU-c of rank 6 cannot access each other's memory");
}
END_TEST

/* The longest strings fit. */
START_TEST(long_words)
{
    static char uuid[500], error[2000];
    const char *const all[] = {uuid, "GPU-c"};

    memset(uuid, 'u', sizeof uuid - 1);
    memset(error, 'e', sizeof error - 1);
    ranks[0].gpu = ranks[1].gpu = uuid;
    for (int i = 0; i < 3; i++) {
        ranks[i].reachable = all;
        ranks[i].n_reachable = 2;
    }
    ck_assert_int_eq(cst_transport_choose(ranks, 3, why), CST_TRANSPORT_PEERS);
    ranks[0].nccl = 0;
    ranks[0].nccl_error = error;
    ck_assert_int_eq(cst_transport_choose(ranks, 3, why), CST_TRANSPORT_PEERS);
    ck_assert_uint_lt(strlen(why), sizeof why);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport");
    TCase *tcase = suite_case(suite, "choice", setup, NULL);

    tcase_add_test(tcase, nccl);
    tcase_add_test(tcase, one_rank);
    tcase_add_test(tcase, host);
    tcase_add_test(tcase, mixed);
    tcase_add_test(tcase, no_library);
    tcase_add_test(tcase, versions);
    tcase_add_test(tcase, shared_gpu);
    tcase_add_test(tcase, in_order);
    tcase_add_test(tcase, old_library);
    tcase_add_test(tcase, hidden);
    tcase_add_test(tcase, refused);
    tcase_add_test(tcase, many_ranks);
    tcase_add_test(tcase, unreachable);
    tcase_add_test(tcase, long_words);
    return suite_run(suite);
}
