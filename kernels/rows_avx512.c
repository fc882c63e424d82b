/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/vec_avx512.h"

#define ISA avx512
#include "kernels/rows_body.h"
