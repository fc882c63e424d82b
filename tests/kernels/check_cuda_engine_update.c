/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of device updates on tests/lib/fakecuda: they have the bits of the host's engine, also with
 * slow streams and killed engines. */
#include "tests/lib/engine_proc.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/reservation_cases.h"
#include "tests/lib/suite.h"

#include <stdlib.h>

static void use(void)
{
    engine_proc_use(FAKE_GPU_ENGINE, fake_gpu_uuid(0));
    (void)setenv("CST_FAKECUDA_DELAY_US", "100", 1);
}

static void use_host(void)
{
    engine_proc_use("./cistern-engine-host", NULL);
}

int main(int argc, char **argv)
{
    static const struct reservation_device gpu = {.use = use, .use_host = use_host};
    Suite *suite = suite_create("cuda_engine_update");
    TCase *tcase = suite_case(suite, "update", NULL, NULL);

    (void)argc;
    fake_gpu_use(argv);
    tcase_set_timeout(tcase, 300);
    reservation_cases_add(tcase, &gpu);
    return suite_run(suite);
}
