/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-net. cisternd starts one such process for each job that has other machines. */
#include "kernels/engine/engine_main.h"
#include "kernels/net/net.h"

int main(int argc, char **argv)
{
    static const struct cste_engine_program net = {.name = "cistern-engine-net",
                                                   .what = "Read memory of other machines",
                                                   .ops = {[CSTE_ENGINE_OWN] = &cste_net_ops}};

    return cste_engine_main(&net, argc, argv);
}
