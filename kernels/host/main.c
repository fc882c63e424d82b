/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-host. cisternd starts one such process for each NUMA node and for each paced
 * accelerator. */
#include "kernels/engine/engine_main.h"
#include "kernels/host/host.h"
#include "kernels/host/paced.h"

int main(int argc, char **argv)
{
    static const struct cste_engine_program host = {.name = "cistern-engine-host",
                                                    .what = "Move and compute on memory",
                                                    .ops = &cste_host_ops,
                                                    .paced = &cste_paced_ops,
                                                    .rates = cste_host_rates};

    return cste_engine_main(&host, argc, argv);
}
