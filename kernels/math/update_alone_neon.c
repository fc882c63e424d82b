/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_neon.h"

#define ISA neon
#define UPDATE_ALONE
#include "kernels/math/update_body.h"
