/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/segment.h"

#include "proto/segment_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define NEEDED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

int cstc_segment_map(struct cstc_segment *segment, int fd, uint64_t bytes, struct cst_err *err)
{
    struct stat st;
    void *base;
    int seals;

    if (fstat(fd, &st) != 0) {
        return cst_err_errno(err, CST_EPROTO, errno, "segment fd");
    }
    if (bytes == 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes) {
        return cst_err_set(err, CST_EPROTO, "segment of %lld bytes where %llu are announced",
                           (long long)st.st_size, (unsigned long long)bytes);
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & NEEDED_SEALS) != NEEDED_SEALS) {
        return cst_err_set(err, CST_EPROTO,
                           "segment that is not sealed against shrinking and growing (seals 0x%x)",
                           seals < 0 ? 0u : (unsigned)seals);
    }
    base = cst_segment_map(fd, bytes);
    if (base == MAP_FAILED) {
        return cst_err_errno(err, CST_ENOMEM, errno, "mmap of %llu bytes",
                             (unsigned long long)bytes);
    }
    /* A child has no leases: its writes would corrupt the memory of the job. */
    if (madvise(base, bytes, MADV_DONTFORK) != 0) {
        int errnum = errno;

        (void)munmap(base, bytes);
        return cst_err_errno(err, CST_ENOMEM, errnum, "madvise");
    }
    *segment = (struct cstc_segment){.base = base, .bytes = bytes};
    return CST_OK;
}

void cstc_segment_unmap(struct cstc_segment *segment)
{
    if (segment->base != NULL) {
        (void)munmap(segment->base, segment->bytes);
        segment->base = NULL;
    }
}
