/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_ref.h"

#define ISA ref
#define UPDATE_SPLIT
#include "kernels/math/update_body.h"
