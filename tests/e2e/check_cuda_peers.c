/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training on GPUs that cannot access each other's memory, or only in pairs, with a real
 * daemon, the real engines and libcistern-cuda on tests/lib/fakecuda. The results must have the
 * bits of a computation in this process, which are those of GPUs with peer access
 * (check_cuda_train.c), whichever process dies. */
#include "tests/lib/cuda_rig.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_cases.h"

#include <check.h>
#include <stdlib.h>

static const struct train_placement three = {"three", 3, {"cuda:0", "cuda:1", "cuda:2"}},
                                    four = {"four", 4, {"cuda:0", "cuda:1", "cuda:2", "cuda:3"}};

/* -- the daemon ------------------------------------------------------------------------------- */

#define GATHERED "[gpu]\ngather = 4096\n"

/* Start a daemon with @n GPUs of which the driver says that @peers access each other's memory. */
static void open_gpus(const char *peers, unsigned n, const char *config)
{
    (void)setenv("CST_FAKECUDA_PEERS", peers, 1);
    cuda_rig_dawdle(false);
    cuda_rig_open_gpus(config, n);
}

static void setup_two(void)
{
    open_gpus("none", 2, GATHERED);
}

static void setup_three(void)
{
    open_gpus("none", 3, GATHERED);
}

/* Fixture: streams are delayed, and every second chunk gets a device update. */
static void setup_late(void)
{
    (void)setenv("CST_FAKECUDA_PEERS", "none", 1);
    cuda_rig_dawdle(true);
    cuda_rig_open_gpus("[plan]\ninterleave = 2\n", 3);
}

/* Fixture: the GPUs 0 and 1 access each other's memory, and so do 2 and 3. */
static void setup_pairs(void)
{
    open_gpus("0-1,2-3", 4, GATHERED);
}

/* Fixture: the driver has peer access, and the configuration turns it off. */
static void setup_off(void)
{
    open_gpus("all", 2, GATHERED "peers = no\n");
}

/* Fixture: the driver also refuses to register host memory. */
static void setup_staged(void)
{
    (void)setenv("CST_FAKECUDA_FAIL", "cuMemHostRegister:1+=801", 1);
    (void)setenv("CST_FAKECUDA_PAGEABLE", "no", 1);
    setup_two();
}

/* -- what is said ----------------------------------------------------------------------------- */

#define THROUGH_HOST "are copied from GPUs to host memory, because no GPU can access"
#define BY_PEERS "peers that it reads 1"
#define TOGETHER "GPUs that expect its weights together"

static bool explains(const char *job, const char *words)
{
    return raw_explains(&witness, job, train_small.tensors[0].name, words);
}

/* Bytes that the ranks of @job have copied from other GPUs' pools. */
static uint64_t peer_bytes(const char *job)
{
    const Cistern__JobInfo *info = raw_job_info(&witness, job);
    uint64_t bytes = 0;

    for (size_t r = 0; r < info->n_ranks; r++) {
        bytes += info->ranks[r]->bytes_peer;
    }
    return bytes;
}

/* -- tests ------------------------------------------------------------------------------------ */

/* Sums go through host memory, nothing is exchanged between GPUs, and explain and stat say so. */
START_TEST(told)
{
    const Cistern__StatReply *stat;

    train_rig_run(&train_placements[TRAIN_PEERS], "told", 0);
    ck_assert_uint_eq(peer_bytes("told"), 0);
    ck_assert(explains("told", THROUGH_HOST));
    ck_assert(!explains("told", TOGETHER));
    stat = raw_stat(&witness);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(stat->gpus[i]->n_unreachable, 1);
        ck_assert_str_eq(stat->gpus[i]->unreachable[0], stat->gpus[1 - i]->uuid);
    }
}
END_TEST

/* With three GPUs: largest and smallest pools, with one micro-batch per step and with three. */
START_TEST(three_gpus)
{
    train_like.micro_batches = _i == 0 ? 0 : 3;
    train_rig_bits(&three);
}
END_TEST

/* Ranks that hold different tensors: each tensor is summed where its own ranks can be accessed. */
START_TEST(mixture)
{
    train_like.mixture = true;
    train_rig_run(&three, "mixture", 0);
    train_rig_run(&three, "smallest", train_smallest_pool(&reports[0]->plan));
}
END_TEST

/* Streams come late, and every second chunk is updated on its GPU. */
START_TEST(late)
{
    struct train_order order = train_rig_order(&three, "late", 0);

    order.device_update_bytes = 3 << 20;
    order.micro_batches = _i == 0 ? 0 : 3;
    train_rig_run_like(&three, &order, 0);
    ck_assert_uint_gt(raw_job_info(&witness, "late")->n_device_updates, 0);
}
END_TEST

/* Of two pairs of GPUs, those of a pair exchange weights. A tensor that all four hold is summed in
 * host memory. Two ranks on a pair are summed by a GPU. */
START_TEST(pairs)
{
    static const struct train_placement pair = {"pair", 2, {"cuda:2", "cuda:3"}},
                                        crossed = {"crossed", 2, {"cuda:1", "cuda:2"}};

    train_rig_bits(&four);
    train_rig_run(&four, "all", 0);
    ck_assert(explains("all", THROUGH_HOST));
    ck_assert(explains("all", "up to 2 " TOGETHER));
    ck_assert_uint_gt(peer_bytes("all"), 0);
    train_rig_run(&pair, "pair", 0);
    ck_assert(explains("pair", BY_PEERS));
    train_rig_run(&crossed, "crossed", 0);
    ck_assert(explains("crossed", THROUGH_HOST));
}
END_TEST

START_TEST(pairs_mixture)
{
    train_like.mixture = true;
    train_rig_run(&four, "mixture", 0);
}
END_TEST

/* The configuration turns peer access off. */
START_TEST(turned_off)
{
    train_rig_bits(&train_placements[TRAIN_PEERS]);
    train_rig_run(&train_placements[TRAIN_PEERS], "off", 0);
    ck_assert(explains("off", THROUGH_HOST));
    ck_assert_uint_eq(peer_bytes("off"), 0);
}
END_TEST

/* Gradients land through pinned buffers if the driver registers no host memory. */
START_TEST(staged)
{
    train_rig_bits(&train_placements[TRAIN_PEERS]);
}
END_TEST

/* A gradient that is not finite is detected in host memory: the step is skipped. */
START_TEST(bad_gradient)
{
    struct train_order order = train_rig_order(&train_placements[TRAIN_PEERS], "bad", 0);

    order.bad = (struct train_bad){.step = 1, .value = 0x7fc0};
    train_rig_run_like(&train_placements[TRAIN_PEERS], &order, 0);
    ck_assert(reports[0]->run.results[1].skipped && !reports[0]->run.results[2].skipped);
}
END_TEST

/* One of two ranks is killed at every point, and replaced. */
START_TEST(worker_killed)
{
    (void)train_rig_kill_worker(&train_placements[TRAIN_PEERS], (uint32_t)_i,
                                (struct train_points){0, 1, 9});
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_peers");
    TCase *two = suite_case(suite, "two", setup_two, cuda_rig_close);
    TCase *deaths = suite_case(suite, "deaths", setup_two, cuda_rig_close);
    TCase *more = suite_case(suite, "three", setup_three, cuda_rig_close);
    TCase *delayed = suite_case(suite, "late", setup_late, cuda_rig_close);
    TCase *in_pairs = suite_case(suite, "pairs", setup_pairs, cuda_rig_close);
    TCase *off = suite_case(suite, "off", setup_off, cuda_rig_close);
    TCase *unregistered = suite_case(suite, "staged", setup_staged, cuda_rig_close);

    (void)argc;
    fake_gpu_use(argv);
    train_cases_use("cuda");
    train_cases_bits(two);
    train_cases_micro_batch_bits(two);
    tcase_add_test(two, told);
    tcase_add_test(two, bad_gradient);
    train_cases_engine_killed(deaths, 0, 3);
    suite_add_loop(deaths, worker_killed, 0, 2);
    tcase_set_timeout(deaths, 180);
    suite_add_loop(more, three_gpus, 0, 2);
    tcase_add_test(more, mixture);
    suite_add_loop(delayed, late, 0, 2);
    tcase_add_test(in_pairs, pairs);
    tcase_add_test(in_pairs, pairs_mixture);
    tcase_add_test(off, turned_off);
    tcase_add_test(unregistered, staged);
    return suite_run(suite);
}
