/* A worker: one tensor, one operator, three steps of a model whose gradient is its weight. */
#include <cistern/cistern.h>
#include <stdio.h>
#include <string.h>
#define CHECK(call) if ((call) < 0) { fprintf(stderr, "%s: %s\n", #call, err.text); return 1; }

int main(void)
{
    struct cst_client *client; struct cst_job *job; struct cst_io io;
    struct cst_step_result result; struct cst_err err = {0};
    static float start[1000];                       /* fp32 master weights */
    for (int i = 0; i < 1000; i++) start[i] = 1.0f;
    CHECK(cst_connect(&client, NULL, &err));        /* $CISTERN_SOCKET or the default */
    CHECK(cst_job_open(&job, client, &(struct cst_job_spec){.name = "example", .world = 1}, &err));
    int w = cst_tensor(job, "w", CST_BF16, 2, (int64_t[]){10, 100}, CST_GROUP_ALL);
    int layer = cst_operator(job, "layer", &w, 1);
    CHECK(cst_commit(job, NULL, &err));             /* the daemon chooses sizes; maps the pool */
    if (!cst_job_initialised(job))
        CHECK(cst_tensor_write(job, w, CST_STATE_MASTER, 0, 1000, start, &err));
    CHECK(cst_sync(job, NULL, &err));               /* wait for all ranks */
    for (int step = 0; step < 3; step++) {
        CHECK(cst_op_begin(job, layer, CST_FORWARD, &io, 1, &err));  /* io.weight: 1000 bf16 */
        CHECK(cst_op_end(job, layer, &err));
        CHECK(cst_op_begin(job, layer, CST_BACKWARD, &io, 1, &err)); /* io.grad, to be written */
        memcpy(io.grad, io.weight, 2 * io.n_elems);
        CHECK(cst_op_end(job, layer, &err));
        CHECK(cst_step(job, &(struct cst_hyper_params){.lr = 0.1f, .clip_norm = 1.0f},
                       &result, &err));
        printf("step %llu: gradient norm %g\n", (unsigned long long)result.step, result.grad_norm);
    }
    CHECK(cst_job_leave(job, &err));
    cst_disconnect(client);
    return 0;
}
