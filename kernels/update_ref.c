/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/vec_ref.h"

#define UPDATE_TABLE cst_update_ref
#include "kernels/update_body.h"
