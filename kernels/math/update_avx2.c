/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_avx2.h"

#define UPDATE_TABLE cst_update_avx2
#include "kernels/math/update_body.h"

#define ISA avx2
#include "kernels/math/product_body.h"
