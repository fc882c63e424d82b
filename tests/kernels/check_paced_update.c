/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of device updates by a paced accelerator: they have the bits of the host engine's update in
 * place, also when the accelerator's engine is killed repeatedly. */
#include "tests/lib/engine_proc.h"
#include "tests/lib/reservation_cases.h"
#include "tests/lib/suite.h"

#define RATES "up=400000000,down=300000000,update=200000000,memory=134217728"

static void use(void)
{
    engine_proc_use_option("--paced", RATES);
}

static void use_host(void)
{
    engine_proc_use_option(NULL, NULL);
}

int main(void)
{
    static const struct reservation_device paced = {.use = use, .use_host = use_host};
    Suite *suite = suite_create("paced_update");

    reservation_cases_add(suite_case(suite, "paced_update", NULL, NULL), &paced);
    return suite_run(suite);
}
