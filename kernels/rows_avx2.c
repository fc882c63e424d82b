/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/vec_avx2.h"

#define ISA avx2
#include "kernels/rows_body.h"
