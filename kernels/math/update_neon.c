/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_neon.h"

#define UPDATE_TABLE cst_update_neon
#include "kernels/math/update_body.h"

#define ISA neon
#include "kernels/math/product_body.h"
