/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-host. cisternd starts one such process for each NUMA node and for each paced
 * accelerator. */
#include "kernels/engine_main.h"
#include "kernels/host/host.h"
#include "kernels/host/paced.h"

int main(int argc, char **argv)
{
    static const struct cst_engine_program host = {.name = "cistern-engine-host",
                                                   .what = "Move and compute on memory",
                                                   .ops = &cst_host_ops,
                                                   .paced = &cst_paced_ops,
                                                   .rates = cst_host_rates};

    return cst_engine_main(&host, argc, argv);
}
