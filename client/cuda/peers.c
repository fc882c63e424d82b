/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/peers.h"

int cstc_cuda_peers_open(struct cstc_cuda_peers *peers, const struct cst_cuda_driver *driver,
                         struct cst_err *err)
{
    return cst_cuda_kernels_open(&peers->kernels, driver, err);
}

void cstc_cuda_peers_close(struct cstc_cuda_peers *peers)
{
    if (peers->kernels.driver != NULL) {
        cst_cuda_kernels_close(&peers->kernels);
        peers->kernels.driver = NULL;
    }
}

int cstc_cuda_peers_add_up(const struct cstc_cuda_peers *peers, CUstream stream,
                           enum cst_comm_type type, size_t n_elems, uint32_t n_src,
                           const void *const *src, void *dst, struct cst_err *err)
{
    struct cst_cuda_total total = {.dst = dst, .n = n_elems, .n_src = n_src};

    for (uint32_t i = 0; i < n_src && i < CST_CUDA_MAX_SRC; i++) {
        total.src[i] = src[i];
    }
    return type == CST_COMM_FP32 ? cst_cuda_total_fp32(&peers->kernels, stream, &total, err)
                                 : cst_cuda_total_bf16(&peers->kernels, stream, &total, err);
}
