/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-engine-cuda. cisternd starts one such process for each GPU that a job needs, and one to
 * list the GPUs. */
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/probe.h"
#include "kernels/engine/engine_main.h"

int main(int argc, char **argv)
{
    static const struct cste_engine_program cuda = {.name = "cistern-engine-cuda",
                                                    .what = "Move memory to and from a GPU",
                                                    .ops = {&cste_cuda_ops},
                                                    .probe = cste_cuda_probe,
                                                    .rates = cste_cuda_rates};

    return cste_engine_main(&cuda, argc, argv);
}
