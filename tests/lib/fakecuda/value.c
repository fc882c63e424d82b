/* SPDX-License-Identifier: Apache-2.0 */
/* Other operations of streams: write a word, wait for a word, call a function of the host. */
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/stream.h"

#include <time.h>

#define POLL_NS 50000

struct value {
    struct cst_fake_op op;
    uint64_t *word; /* eight aligned bytes */
    uint64_t value;
    unsigned flags; /* CUstreamWaitValue_flags */
};

struct call {
    struct cst_fake_op op;
    CUhostFn fn;
    void *data; /* argument of the function */
};

/* -- words ---------------------------------------------------------------------------------- */

static CUresult run_write(struct cst_fake_op *op)
{
    struct value *v = (struct value *)op;

    __atomic_store_n(v->word, v->value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static bool is_there(const struct value *v)
{
    uint64_t now = __atomic_load_n(v->word, __ATOMIC_ACQUIRE);

    switch (v->flags & 3) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == v->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & v->value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return ~(now | v->value) != 0;
    default: /* GEQ compares modulo the word's size */
        return now - v->value <= (uint64_t)INT64_MAX;
    }
}

/* Another process may write the word and signals nobody, so the word is polled. */
static CUresult run_wait(struct cst_fake_op *op)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};

    while (!is_there((struct value *)op) && !cst_fake_op_is_void(op)) {
        (void)nanosleep(&poll, NULL);
    }
    return CUDA_SUCCESS;
}

static CUresult start_value(CUstream handle, CUdeviceptr addr, uint64_t value, unsigned flags,
                            bool write)
{
    enum cst_fake_verdict verdict;
    struct cst_fake_stream *stream;
    struct value *v;
    CUresult result = cst_fake_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    verdict = cst_fake_classify(addr, 8, stream->context->device, write);
    if (addr % 8 != 0 || (verdict != CST_FAKE_IS_DEVICE && verdict != CST_FAKE_IS_PINNED)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    v = (struct value *)cst_fake_op_new(sizeof *v, "value", write ? run_write : run_wait);
    if (v == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    v->op.touches[0] = (struct cst_fake_touch){.addr = addr, .bytes = 8, .write = write};
    v->word = (uint64_t *)addr;
    v->value = value;
    v->flags = flags;
    return cst_fake_stream_submit(stream, &v->op);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                              unsigned int flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* The second version of the call has no other flag. */
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    return cst_fake_end(start_value(stream, addr, value, flags, true));
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                             unsigned int flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* FLUSH needs an attribute that these devices do not have. */
    if (flags > CU_STREAM_WAIT_VALUE_NOR) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    return cst_fake_end(start_value(stream, addr, value, flags, false));
}

/* -- host functions ------------------------------------------------------------------------- */

static CUresult run_call(struct cst_fake_op *op)
{
    struct call *call = (struct call *)op;

    cst_fake_in_host_function(true);
    call->fn(call->data);
    cst_fake_in_host_function(false);
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_stream *stream;
    struct call *call;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cst_fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS && fn == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS) {
        return cst_fake_end(result);
    }
    call = (struct call *)cst_fake_op_new(sizeof *call, "host", run_call);
    if (call == NULL) {
        return cst_fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    call->fn = fn;
    call->data = userData;
    return cst_fake_end(cst_fake_stream_submit(stream, &call->op));
}
