/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the commands of a GPU's engine process, which is driven over its socket as by the
 * daemon. It uses tests/lib/fakecuda, whose memory the test can read. */
#include "tests/lib/device_cases.h"
#include "tests/lib/engine_rig.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t seed;

static void set_up(void)
{
    device_cases_seed(seed);
    engine_proc_use(FAKE_GPU_ENGINE, fake_gpu_uuid(0));
    engine_rig_setup(true);
}

/* Like the other fixture; each operation begins after a random delay. */
static void set_up_slow(void)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%" PRIu64, seed);
    (void)setenv("CST_FAKECUDA_SEED", text, 1);
    (void)setenv("CST_FAKECUDA_DELAY_US", "2000", 1);
    set_up();
}

/* Like the other fixture; the driver registers no host memory, and refuses to copy from or to
 * memory that is not pinned. */
static void set_up_staged(void)
{
    (void)setenv("CST_FAKECUDA_FAIL", "cuMemHostRegister:1+=801", 1);
    (void)setenv("CST_FAKECUDA_PAGEABLE", "no", 1);
    set_up();
}

int main(int argc, char **argv)
{
    const char *text = getenv("CST_FAKECUDA_SEED");
    Suite *suite = suite_create("cuda_engine");
    TCase *plain = suite_case(suite, "plain", set_up, engine_rig_teardown);
    TCase *staged = suite_case(suite, "staged", set_up_staged, engine_rig_teardown);
    TCase *slow = suite_case(suite, "slow", set_up_slow, engine_rig_teardown);

    (void)argc;
    seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    fake_gpu_use(argv);
    printf("seed: CST_FAKECUDA_SEED=%" PRIu64 "\n", seed);
    device_cases_add(plain);
    device_cases_add_borders(plain);
    device_cases_add(staged);
    device_cases_add_slow(slow);
    return suite_run(suite);
}
