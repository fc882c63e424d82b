/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_neon.h"

#define ISA neon
#include "kernels/math/rows_body.h"
