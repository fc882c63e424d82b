/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/vec_avx2.h"

#define UPDATE_TABLE cst_update_avx2
#include "kernels/update_body.h"
