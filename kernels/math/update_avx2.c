/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_avx2.h"

#define ISA avx2
#include "kernels/math/update_body.h"
#include "kernels/math/product_body.h"
