/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-host. cisternd starts one such process for each NUMA node, for each paced
 * accelerator and for each drive with states. */
#include "kernels/engine/engine_main.h"
#include "kernels/host/disk.h"
#include "kernels/host/host.h"
#include "kernels/host/paced.h"

int main(int argc, char **argv)
{
    static const struct cste_engine_program host = {.name = "cistern-engine-host",
                                                    .what = "Move and compute on memory",
                                                    .ops = {[CSTE_ENGINE_OWN] = &cste_host_ops,
                                                            [CSTE_ENGINE_PACED] = &cste_paced_ops,
                                                            [CSTE_ENGINE_DISK] = &cste_disk_ops},
                                                    .rates = cste_host_rates};

    return cste_engine_main(&host, argc, argv);
}
