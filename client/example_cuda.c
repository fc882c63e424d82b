/* The worker of example.c with its pool on a GPU. The pointers are addresses on the GPU. The worker
 * enqueues its work and does not wait for it. */
#include <cistern/cuda.h>
#include <cuda.h>
#include <stdio.h>

#define CHECK(call)                                                                                \
    if ((call) < 0) {                                                                              \
        fprintf(stderr, "%s: %s\n", #call, err.text);                                              \
        return 1;                                                                                  \
    }

int main(void)
{
    struct cst_client *client;
    struct cst_job *job;
    struct cst_cuda *cuda;
    struct cst_io io;
    struct cst_step_result result;
    struct cst_err err = {0};
    /* The default stream. Another stream must belong to the primary context of the job's GPU. */
    CUstream stream = NULL;
    static float start[1000]; /* fp32 master weights, always in host memory */

    for (int i = 0; i < 1000; i++)
        start[i] = 1.0f;
    CHECK(cst_connect(&client, NULL, &err));
    CHECK(cst_job_open(
        &job, client,
        &(struct cst_job_spec){.name = "example-cuda", .rank = 0, .world = 1, .device = "cuda"},
        &err));
    CHECK(cst_cuda_open(&cuda, job, stream, &err)); /* makes the GPU's context current */
    int w = cst_tensor(job, "w", CST_BF16, 2, (int64_t[]){10, 100}, CST_GROUP_ALL);
    int layer = cst_operator(job, "layer", &w, 1);
    CHECK(cst_commit(job, NULL, &err));
    if (!cst_job_initialised(job))
        CHECK(cst_tensor_write(job, w, CST_STATE_MASTER, 0, 1000, start, &err));
    CHECK(cst_sync(job, NULL, &err));
    for (int step = 0; step < 3; step++) {
        CHECK(cst_op_begin(job, layer, CST_FORWARD, &io, 1,
                           &err)); /* work enqueued from now on finds the weights in place */
        CHECK(cst_op_end(job, layer, &err));
        CHECK(cst_op_begin(job, layer, CST_BACKWARD, &io, 1, &err));
        if (cuMemcpyDtoDAsync((CUdeviceptr)io.grad, (CUdeviceptr)io.weight, 2 * io.n_elems,
                              stream) != CUDA_SUCCESS)
            return 1;
        CHECK(cst_op_end(job, layer, &err)); /* the leases end when the stream gets here */
        CHECK(cst_step(job, &(struct cst_hyper_params){.lr = 0.1f, .clip_norm = 1.0f}, &result,
                       &err));
        printf("step %llu: gradient norm %g\n", (unsigned long long)result.step, result.grad_norm);
    }
    CHECK(cst_job_leave(job, &err));
    cst_disconnect(client);
    cst_cuda_close(cuda);
    return 0;
}
