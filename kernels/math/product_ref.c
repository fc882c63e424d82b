/* SPDX-License-Identifier: Apache-2.0 */
/* Products in plain C. They define the results of the other variants. */
#include "kernels/math/vec_ref.h"

#define ISA ref
#include "kernels/math/product_body.h"
