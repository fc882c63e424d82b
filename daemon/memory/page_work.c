/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/page_work.h"

#include "proto/fallocate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct cstd_page_work {
    uv_work_t work;
    cstd_page_work_cb done; /* NULL: the work was abandoned. */
    void *arg;
    struct cst_err err; /* The result. */
    uint32_t n;
    struct cstd_pages pages[]; /* With a reference to each segment. */
};

static int carry_out(const struct cstd_pages *pages, struct cst_err *err)
{
    int mode = pages->remove ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : FALLOC_FL_KEEP_SIZE;

    if (cst_fallocate(pages->segment->fd, mode, pages->offset, pages->bytes) == 0) {
        return CST_OK;
    }
    return cst_err_errno(err, errno == ENOMEM || errno == ENOSPC ? CST_ENOMEM : CST_EIO, errno,
                         "%s %" PRIu64 " bytes at %" PRIu64 " of segment %" PRIu32,
                         pages->remove ? "giving back" : "backing", pages->bytes, pages->offset,
                         pages->segment->id);
}

static void on_thread(uv_work_t *uv)
{
    struct cstd_page_work *work = uv->data;
    int rc = CST_OK;

    for (uint32_t i = 0; i < work->n && rc == CST_OK; i++) {
        rc = carry_out(&work->pages[i], &work->err);
    }
}

static void free_work(struct cstd_page_work *work)
{
    for (uint32_t i = 0; i < work->n; i++) {
        cstd_segment_unref(work->pages[i].segment);
    }
    free(work);
}

static void on_thread_done(uv_work_t *uv, int status)
{
    struct cstd_page_work *work = uv->data;

    (void)status; /* libuv's cancellation is not used. */
    if (work->done != NULL) {
        work->done(work->arg, &work->err);
    }
    free_work(work);
}

int cstd_page_work_start(struct cstd_page_work **out, uv_loop_t *loop,
                         const struct cstd_pages *pages, uint32_t n, cstd_page_work_cb done,
                         void *arg, struct cst_err *err)
{
    struct cstd_page_work *work = calloc(1, sizeof *work + n * sizeof *pages);

    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of pages");
    }
    work->work.data = work;
    work->done = done;
    work->arg = arg;
    work->n = n;
    for (uint32_t i = 0; i < n; i++) {
        work->pages[i] = pages[i];
        cstd_segment_ref(pages[i].segment);
    }
    if (uv_queue_work(loop, &work->work, on_thread, on_thread_done) != 0) {
        free_work(work);
        return cst_err_set(err, CST_ENOMEM, "no memory for a thread's work");
    }
    *out = work;
    return CST_OK;
}

void cstd_page_work_abandon(struct cstd_page_work *work)
{
    if (work != NULL) {
        work->done = NULL;
    }
}
