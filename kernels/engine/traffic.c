/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/traffic.h"

#include "kernels/engine/segments.h"

#include <errno.h>
#include <sys/mman.h>

int cste_engine_traffic_open(struct cste_engine_traffic *traffic, int fd, uint32_t n_slots,
                             uint32_t own, struct cst_err *err)
{
    uint64_t bytes = n_slots * sizeof(struct cst_traffic);
    int rc = cste_segments_check_fd(fd, bytes, err);
    void *slots;

    *traffic = (struct cste_engine_traffic){0};
    if (rc != CST_OK) {
        return cst_err_prefix(err, "table of traffic");
    }
    slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (slots == MAP_FAILED) {
        return cst_err_errno(err, CST_ENOMEM, errno, "mapping the table of traffic");
    }
    traffic->slots = slots;
    traffic->n_slots = n_slots;
    traffic->own = own < n_slots ? &traffic->slots[own] : NULL;
    return CST_OK;
}
