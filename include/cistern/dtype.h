/* SPDX-License-Identifier: Apache-2.0 */
/* Types of a tensor's elements in the model. This header is installed. The numbers are part of the
 * wire protocol. */
#ifndef CST_PROTO_DTYPE_H
#define CST_PROTO_DTYPE_H

enum cst_dtype {
    /* Weights and gradients are bf16. The fp32 master weights are stored in addition. */
    CST_BF16 = 1,
    /* Weights and gradients are fp32. The weights are the master weights. */
    CST_FP32 = 2,
};

#endif
