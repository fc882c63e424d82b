/* SPDX-License-Identifier: Apache-2.0 */
/* slow_engine: cistern-engine-host whose simulated accelerators only copy. */
#include "kernels/engine/engine_main.h"
#include "kernels/host/host.h"
#include "kernels/host/paced.h"

int main(int argc, char **argv)
{
    static struct cste_device_ops slow;
    static const struct cste_engine_program program = {
        .name = "slow_engine",
        .what = "Only copy",
        .ops = {[CSTE_ENGINE_OWN] = &cste_host_ops, [CSTE_ENGINE_PACED] = &slow}};

    slow = cste_paced_ops;
    slow.name = "slow";
    slow.compute = NULL;
    return cste_engine_main(&program, argc, argv);
}
