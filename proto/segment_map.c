/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/segment_map.h"

#include "proto/round_up.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* Map as cst_segment_map does, at an aligned address. */
static void *map_aligned(int fd, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t rounded = cst_round_up(bytes, page), reserved = rounded + CST_LARGE_PAGE;
    uint64_t before;
    char *range;
    void *at;

    /* A range of addresses is reserved that has an aligned one near its start. The rest of the
     * range is given back. */
    range = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        return MAP_FAILED;
    }
    before = cst_round_up((uint64_t)(uintptr_t)range, CST_LARGE_PAGE) - (uint64_t)(uintptr_t)range;
    at = mmap(range + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
        (void)munmap(range, reserved);
        return MAP_FAILED;
    }
    if (before > 0) {
        (void)munmap(range, before);
    }
    if (before < CST_LARGE_PAGE) {
        (void)munmap(range + before + rounded, CST_LARGE_PAGE - before);
    }
    return at;
}

void *cst_segment_map(int fd, uint64_t bytes)
{
    void *at = MAP_FAILED;

    if (bytes >= CST_LARGE_PAGE && bytes <= SIZE_MAX / 2) {
        at = map_aligned(fd, bytes);
    }
    /* An emulator may be unable to map at a fixed address, and addresses may be scarce. */
    return at != MAP_FAILED ? at : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}
