/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_avx512.h"

#define ISA avx512
#define UPDATE_ALONE
#include "kernels/math/update_body.h"
