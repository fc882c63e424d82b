/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/vec_avx512.h"

#define UPDATE_TABLE cst_update_avx512
#include "kernels/update_body.h"
