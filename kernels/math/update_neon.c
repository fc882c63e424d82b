/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_neon.h"

#define ISA neon
#include "kernels/math/update_body.h"
#include "kernels/math/product_body.h"
