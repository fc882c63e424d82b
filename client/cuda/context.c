/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/cuda.h"

int cstc_cuda_enter(struct cst_cuda *cuda, struct cst_err *err)
{
    return cst_cuda_check(&cuda->driver, cuda->driver.cuCtxSetCurrent(cuda->context), err,
                          "context of %s", cuda->uuid);
}

int cstc_cuda_side_stream(struct cst_cuda *cuda, CUstream *out, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &cuda->driver;
    int least = 0, greatest = 0;
    int rc = cst_cuda_check(driver, driver->cuCtxGetStreamPriorityRange(&least, &greatest), err,
                            "priorities of streams");

    return rc == CST_OK ? cst_cuda_check(driver,
                                         driver->cuStreamCreateWithPriority(
                                             out, CU_STREAM_NON_BLOCKING, greatest),
                                         err, "a stream of %s", cuda->uuid)
                        : rc;
}
