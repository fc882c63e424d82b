/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/comm_page.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct cst_comm_head) <= CST_COMM_PAGE_BYTES, "the head fits into its page");
_Static_assert(sizeof(struct cst_comm_line) == 256, "no two ranks share a cache line");
_Static_assert(sizeof(struct cst_comm_header) == 64, "a header is a cache line");

void cst_comm_ring(struct cst_comm_line *line)
{
    (void)__atomic_add_fetch(&line->bell, 1, __ATOMIC_RELEASE);
    (void)syscall(SYS_futex, &line->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void cst_comm_sleep(struct cst_comm_line *line, uint32_t bell, unsigned timeout_ms)
{
    const struct timespec limit = {.tv_sec = timeout_ms / 1000,
                                   .tv_nsec = (long)(timeout_ms % 1000) * 1000000};

    (void)syscall(SYS_futex, &line->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
}

void cst_comm_break(void *base, uint32_t size, const struct cst_err *why)
{
    struct cst_comm_head *head = base;

    head->status = why->status;
    memcpy(head->text, why->text, sizeof head->text);
    __atomic_store_n(&head->broken, 1, __ATOMIC_RELEASE);
    for (uint32_t rank = 0; rank < size; rank++) {
        cst_comm_ring(cst_comm_line(base, rank));
    }
}
