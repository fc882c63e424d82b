/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/box.h"

#include <inttypes.h>
#include <stdlib.h>

int cst_box_check(const struct cst_tensor_words *words, struct cst_err *err)
{
    for (uint32_t d = 0; d < words->n_dims; d++) {
        const int64_t n = words->packed != NULL ? words->packed[d] : 1;
        int64_t room = words->whole[d] - words->shape[d];

        if (n < 1 || n > CST_LAYOUT_MAX_PACKED || words->whole[d] % n != 0 ||
            words->shape[d] % n != 0) {
            return cst_err_set(
                err, CST_EINVAL,
                "tensor '%s': in dimension %" PRIu32 " its box has %" PRId64 " of %" PRId64
                " elements in %" PRId64 " ranges: their number divides both, and is 1 to %d",
                words->name, d, words->shape[d], words->whole[d], n, CST_LAYOUT_MAX_PACKED);
        }
        room /= n;
        if (words->first[d] < 0 || words->first[d] > room) {
            return cst_err_set(err, CST_EINVAL,
                               "tensor '%s': in dimension %" PRIu32 " its box has %" PRId64
                               " elements from %" PRId64 " on, but the whole tensor has %" PRId64,
                               words->name, d, words->shape[d], words->first[d], words->whole[d]);
        }
    }
    return CST_OK;
}

struct cst_layout_box *cst_box_make(const struct cst_tensor_words *words)
{
    const char *name = words->whole_name != NULL ? words->whole_name : "";
    struct cst_layout_box *box = calloc(1, sizeof *box + strlen(name) + 1);

    if (box != NULL) {
        box->name = strcpy((char *)(box + 1), name);
        memcpy(box->whole, words->whole, words->n_dims * sizeof *words->whole);
        memcpy(box->first, words->first, words->n_dims * sizeof *words->first);
        for (uint32_t d = 0; d < words->n_dims; d++) {
            const bool is_all = words->shape[d] == words->whole[d];

            box->packed[d] = words->packed != NULL && !is_all ? words->packed[d] : 1;
        }
    }
    return box;
}
