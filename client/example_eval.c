/* A worker that evaluates its model between two steps. The weights of the evaluation's operator are
 * fetched into the pool while the worker does something else, and leave it after the evaluation. */
#include <cistern/cistern.h>
#include <stdio.h>
#include <string.h>

#define CHECK(call)                                                                                \
    if ((call) < 0) {                                                                              \
        fprintf(stderr, "%s: %s\n", #call, err.text);                                              \
        return 1;                                                                                  \
    }

enum { ROWS = 64, COLUMNS = 1024, N = ROWS * COLUMNS };

int main(void)
{
    struct cst_client *client;
    struct cst_job *job;
    struct cst_io io;
    struct cst_err err = {0};
    struct cst_rank_stat stat;
    static float start[N]; /* fp32 master weights */

    for (int i = 0; i < N; i++)
        start[i] = 1.0f;
    CHECK(cst_connect(&client, NULL, &err));
    CHECK(
        cst_job_open(&job, client,
                     &(struct cst_job_spec){
                         .name = "example_eval", .rank = 0, .world = 1, .planning.chunk_elems = N},
                     &err));
    int w = cst_tensor(job, "w", CST_BF16, 2, (int64_t[]){ROWS, COLUMNS}, CST_GROUP_ALL);
    int probe = cst_tensor(job, "probe", CST_BF16, 2, (int64_t[]){ROWS, COLUMNS}, CST_GROUP_ALL);
    int layer = cst_operator(job, "layer", &w, 1);
    int check = cst_operator(job, "check", &probe, 1); /* only for the evaluation */
    CHECK(cst_commit(job, NULL, &err));
    if (!cst_job_initialised(job)) {
        CHECK(cst_tensor_write(job, w, CST_STATE_MASTER, 0, N, start, &err));
        CHECK(cst_tensor_write(job, probe, CST_STATE_MASTER, 0, N, start, &err));
    }
    CHECK(cst_sync(job, NULL, &err));
    for (int step = 0; step < 3; step++) {
        CHECK(cst_op_begin(job, layer, CST_FORWARD, &io, 1, &err));
        CHECK(cst_op_end(job, layer, &err));
        CHECK(cst_op_begin(job, layer, CST_BACKWARD, &io, 1, &err));
        memcpy(io.grad, io.weight, 2 * io.n_elems);
        CHECK(cst_op_end(job, layer, &err));
        CHECK(cst_step(job, &(struct cst_hyper_params){.lr = 0.1f}, NULL, &err));
        CHECK(cst_hint(job, check, CST_PREFETCH,
                       &err)); /* the weights come while this worker does something else */
        CHECK(cst_op_begin(job, check, CST_FORWARD, &io, 1, &err));
        printf("step %d: probe %04x\n", step + 1, ((const unsigned short *)io.weight)[0]);
        CHECK(cst_op_end(job, check, &err));
        CHECK(cst_hint(job, check, CST_EVICT, &err)); /* the next step can use its block */
    }
    CHECK(cst_stat(job, &stat, &err));
    printf("hits %llu, late %llu, misses %llu, evictions %llu\n", (unsigned long long)stat.hits,
           (unsigned long long)stat.late, (unsigned long long)stat.misses,
           (unsigned long long)stat.evictions);
    CHECK(cst_job_leave(job, &err));
    cst_disconnect(client);
    return 0;
}
