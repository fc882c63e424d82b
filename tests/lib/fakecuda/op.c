/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/op.h"
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/trap.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* -- points --------------------------------------------------------------------------------- */

void cst_fake_progress_put(struct cst_fake_progress *progress)
{
    if (progress != NULL && --progress->refs == 0) {
        free(progress);
    }
}

bool cst_fake_point_reached(struct cst_fake_point point)
{
    return point.progress->done >= point.seq;
}

CUresult cst_fake_point_await(struct cst_fake_point point, CUcontext context)
{
    while (!cst_fake_point_reached(point)) {
        cst_fake_wait();
    }
    return context->broken;
}

/* -- operations ----------------------------------------------------------------------------- */

struct cst_fake_op *cst_fake_op_new(size_t bytes, const char *kind,
                                    CUresult (*run)(struct cst_fake_op *op))
{
    struct cst_fake_op *op = calloc(1, bytes);

    if (op != NULL) {
        op->kind = kind;
        op->run = run;
    }
    return op;
}

void cst_fake_op_drop(struct cst_fake_op *op)
{
    if (op->finish != NULL) {
        op->finish(op);
    }
    for (size_t i = 0; i < op->n_waits; i++) {
        cst_fake_progress_put(op->waits[i].progress);
    }
    free(op->waits);
    free(op);
}

CUresult cst_fake_op_wait(struct cst_fake_op *op, struct cst_fake_point point)
{
    struct cst_fake_point *waits = realloc(op->waits, (op->n_waits + 1) * sizeof *waits);

    if (waits == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->waits = waits;
    op->waits[op->n_waits++] = point;
    point.progress->refs++;
    return CUDA_SUCCESS;
}

static bool is_void(const struct cst_fake_op *op)
{
    return op->context->broken != CUDA_SUCCESS || op->context->dying;
}

bool cst_fake_op_is_void(const struct cst_fake_op *op)
{
    bool answer;

    cst_fake_lock();
    answer = is_void(op);
    cst_fake_unlock();
    return answer;
}

/* -- execution ------------------------------------------------------------------------------ */

/* Called without the lock. */
static void sleep_us(uint64_t us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};

    if (us > 0) {
        (void)nanosleep(&t, NULL);
    }
}

static CUresult check_touches(const struct cst_fake_op *op)
{
    enum cst_fake_verdict verdict;

    for (size_t i = 0; i < sizeof op->touches / sizeof op->touches[0]; i++) {
        const struct cst_fake_touch *t = &op->touches[i];

        if (t->bytes == 0) {
            continue;
        }
        verdict = cst_fake_classify(t->addr, t->bytes, op->context->device, t->write);
        if (verdict == CST_FAKE_IS_ILLEGAL || verdict == CST_FAKE_STRADDLES) {
            fprintf(stderr, "fakecuda: stream %u: %s %s %zu bytes at %#zx, which it may not\n",
                    op->number, op->kind, t->write ? "writes" : "reads", t->bytes, (size_t)t->addr);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    return CUDA_SUCCESS;
}

void cst_fake_op_execute(struct cst_fake_op *op, uint64_t delay_us)
{
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < op->n_waits; i++) {
        while (!cst_fake_point_reached(op->waits[i]) && !is_void(op)) {
            cst_fake_wait();
        }
    }
    cst_fake_unlock();
    sleep_us(delay_us);
    cst_fake_lock();
    if (!is_void(op)) {
        result = cst_fake_fault(op->kind);
        if (result == CUDA_SUCCESS) {
            result = check_touches(op);
        }
        if (result == CUDA_SUCCESS) {
            cst_fake_unlock();
            result = cst_fake_trap(op);
            cst_fake_lock();
        }
        if (result != CUDA_SUCCESS) {
            cst_fake_context_break(op->context, result);
        }
    }
}
