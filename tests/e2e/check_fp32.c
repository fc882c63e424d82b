/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of fp32 tensors beside bf16 ones: two ranks train them, and the states have the bits of an
 * update that is computed here, with each kind of update, with micro-batches, with a pool that is
 * too small for the model, and after deaths of the engine. An fp32 matrix has the states of a bf16
 * matrix with the same start and the same gradients, also if Muon updates them. After every test
 * the daemon has its initial number of descriptors and bytes in use. */
#include "cistern/checkpoint.h"
#include "cistern/cistern.h"
#include "kernels/math/cast.h"
#include "kernels/math/kernels.h"
#include "tests/lib/adamw.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"
#include "tests/lib/two_ranks.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD = 2, N_ELEMS = 3000, N_STEPS = 4, CAPACITY = 8192, BLOCK_BYTES = 2 * CAPACITY };
enum { MATRIX, TWIN, NORM, BIAS, FROZEN, N_TENSORS };

/* A form of the job. */
struct form {
    const char *name;
    enum cst_optimizer optimizer; /* AdamW, or Muon: then AdamW updates NORM and BIAS. */
    enum cst_overlap overlap;
    enum cst_masters masters;
    enum cst_moments moments; /* If they are not fp32, only repeatability is tested. */
    uint32_t micro_batches;
    bool over;         /* Gradients of bf16 tensors take the place of their weights. */
    uint32_t n_blocks; /* Blocks of the pool. */
    bool kill;         /* The engine is killed in each step. */
    bool device;       /* Chunks are updated on an accelerator. */
};

static const struct form forms[] = {
    {.name = "plain", .n_blocks = 16},
    {.name = "small pool", .n_blocks = 6},
    {.name = "micro-batches", .micro_batches = 3, .n_blocks = 6},
    {.name = "early", .overlap = CST_OVERLAP_EARLY, .n_blocks = 8},
    {.name = "delayed", .overlap = CST_OVERLAP_DELAYED, .n_blocks = 8},
    {.name = "split masters", .masters = CST_MASTERS_SPLIT, .n_blocks = 8},
    {.name = "gradients over weights", .over = true, .n_blocks = 6},
    {.name = "deaths", .n_blocks = 6, .kill = true},
    {.name = "early, deaths", .overlap = CST_OVERLAP_EARLY, .n_blocks = 8, .kill = true},
    {.name = "delayed, split, deaths",
     .overlap = CST_OVERLAP_DELAYED,
     .masters = CST_MASTERS_SPLIT,
     .micro_batches = 2,
     .n_blocks = 8,
     .kill = true},
    {.name = "mx8", .moments = CST_MOMENTS_MX8, .n_blocks = 8, .kill = true},
    {.name = "muon, deaths", .optimizer = CST_OPTIMIZER_MUON, .n_blocks = 6, .kill = true},
    {.name = "muon, gradients over weights",
     .optimizer = CST_OPTIMIZER_MUON,
     .n_blocks = 8,
     .over = true},
    {.name = "muon, early, split masters",
     .optimizer = CST_OPTIMIZER_MUON,
     .overlap = CST_OVERLAP_EARLY,
     .masters = CST_MASTERS_SPLIT,
     .n_blocks = 8},
    {.name = "muon, delayed, micro-batches, deaths",
     .optimizer = CST_OPTIMIZER_MUON,
     .overlap = CST_OVERLAP_DELAYED,
     .micro_batches = 2,
     .n_blocks = 8,
     .kill = true},
    {.name = "device updates", .n_blocks = 8, .device = true},
    {.name = "early device updates",
     .overlap = CST_OVERLAP_EARLY,
     .masters = CST_MASTERS_SPLIT,
     .n_blocks = 8,
     .device = true},
    {.name = "muon, device updates of the others",
     .optimizer = CST_OPTIMIZER_MUON,
     .n_blocks = 8,
     .device = true},
};

/* The last forms have device updates. */
enum { N_FORMS = sizeof forms / sizeof *forms, FIRST_PACED = N_FORMS - 3 };

struct states {
    float weight[N_ELEMS], exp_avg[N_ELEMS], exp_avg_sq[N_ELEMS], grad[N_ELEMS];
};

struct run {
    const struct form *form;
    struct cst_client *client[WORLD];
    struct cst_job *job[WORLD];
};

/* Start a daemon with a simulated accelerator. */
static void setup_paced(void)
{
    daemon_proc_start_with(&proc,
                           "[host]\nnodes = 0\n[paced]\ndevices = 1\nup = 256M\ndown = 256M\n"
                           "update = 128M\nmemory = 16M\n[plan]\ninterleave = 1\n",
                           (const char *[]){"--engine-threads=2", NULL});
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

static void teardown(void)
{
    settle_balanced(&witness);
    settle_remove_jobs(&witness);
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
}

/* An operator that begins. */
struct begin {
    int op;
    enum cst_direction direction;
    struct cst_io io[2];
};

static int try_begin(struct cst_job *job, void *arg, struct cst_err *err)
{
    struct begin *begin = arg;

    return cst_try_op_begin(job, begin->op, begin->direction, begin->io, 2, err);
}

static const struct cst_hyper_params params = {.lr = 0.01f, .weight_decay = 0.1f};

static int try_step(struct cst_job *job, void *arg, struct cst_err *err)
{
    (void)arg;
    return cst_try_step(job, &params, NULL, err);
}

/* -- the model -------------------------------------------------------------------------------- */

static float start_of(int tensor, uint32_t i)
{
    uint32_t start = tensor == TWIN ? MATRIX : (uint32_t)tensor;

    return (float)((i * 7 + start * 31) % 1021) / 1021.0f - 0.5f;
}

/* The gradient of an fp32 tensor, of one operator that uses it. It has more digits than bf16. */
static float grad_of(int tensor, int op, float weight, uint32_t i, unsigned rank, uint64_t moment)
{
    uint32_t noise = i * 2654435761u + rank * 97 + (uint32_t)moment * 31 + (uint32_t)(tensor + op);

    return weight * 0.25f + (float)(noise >> 9 & 0x7fff) / 32768.0f;
}

/* The gradient of the two matrices. Its sum over the ranks is exact in bf16, too. */
static float matrix_grad_of(uint32_t i, unsigned rank, uint64_t moment)
{
    uint32_t noise = i * 2654435761u + rank * 97 + (uint32_t)moment * 31;

    return (float)(noise >> 20 & 31) / 16.0f - 1.0f;
}

/* NORM and BIAS are used by two operators each. */
static const int tensors_of[][2] = {{MATRIX, NORM}, {NORM, BIAS}, {BIAS, FROZEN}, {TWIN, FROZEN}};

enum { N_OPS = sizeof tensors_of / sizeof *tensors_of };

static void declare_all(struct cst_job *job)
{
    static const char *const names[N_TENSORS] = {"matrix", "twin", "norm", "bias", "frozen"};
    static const int64_t shape[] = {N_ELEMS}, matrix[] = {N_ELEMS / 50, 50};

    for (int t = 0; t < N_TENSORS; t++) {
        const bool is_matrix = t == MATRIX || t == TWIN;
        const struct cst_tensor_spec spec = {
            .name = names[t],
            .dtype = t == MATRIX ? CST_BF16 : CST_FP32,
            .n_dims = is_matrix ? 2 : 1,
            .shape = is_matrix ? matrix : shape,
            .update = is_matrix ? CST_TENSOR_UPDATE_MUON : CST_TENSOR_UPDATE_AUTO,
            .pattern = t == FROZEN ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD,
            .lr_scale = 1.0f,
            .decay_scale = 1.0f};

        ck_assert_msg(cst_tensor_as(job, &spec) == t, "%s", cst_job_error(job)->text);
    }
    for (int op = 0; op < N_OPS; op++) {
        const char name[] = {(char)('a' + op), '\0'};

        ck_assert_int_eq(cst_operator(job, name, tensors_of[op], 2), op);
    }
}

static void open_run(struct run *run, const struct form *form)
{
    float values[N_ELEMS];

    run->form = form;
    for (uint32_t r = 0; r < WORLD; r++) {
        const struct cst_job_spec spec = {.name = "j",
                                          .rank = r,
                                          .world = WORLD,
                                          .memory.pool_bytes =
                                              (uint64_t)form->n_blocks * BLOCK_BYTES,
                                          .planning.chunk_elems = CAPACITY,
                                          .updates.micro_batches = form->micro_batches,
                                          .updates.overlap = form->overlap,
                                          .states.optimizer = form->optimizer,
                                          .states.masters = form->masters,
                                          .states.moments = form->moments,
                                          .states.grad_over_weight = form->over,
                                          .memory.device_update_bytes = form->device ? 1 << 20 : 0,
                                          .limits.timeout_ms = (uint32_t)patience_ms(20000)};

        OK(cst_connect(&run->client[r], proc.socket, &err));
        OK(cst_job_open(&run->job[r], run->client[r], &spec, &err));
        declare_all(run->job[r]);
    }
    two_ranks_drive(run->client, run->job, two_ranks_commit, NULL);
    for (int t = 0; t < N_TENSORS; t++) {
        for (uint32_t i = 0; i < N_ELEMS; i++) {
            values[i] = start_of(t, i);
        }
        OK(cst_tensor_write(run->job[0], t, CST_STATE_MASTER, 0, N_ELEMS, values, &err));
    }
    two_ranks_drive(run->client, run->job, two_ranks_sync, NULL);
}

static void close_run(struct run *run)
{
    for (unsigned r = 0; r < WORLD; r++) {
        OK(cst_job_leave(run->job[r], &err));
        cst_disconnect(run->client[r]);
    }
    settle_remove_jobs(&witness);
}

/* -- training --------------------------------------------------------------------------------- */

static void write_grad(const struct cst_io *io, int tensor, int op, unsigned rank, uint64_t moment)
{
    const float *weight = io->weight;
    float *grad = io->grad;
    uint16_t *bf16 = io->grad;

    ck_assert_uint_eq((uintptr_t)io->weight % 128 + (uintptr_t)io->grad % 128, 0);
    for (uint32_t i = 0; grad != NULL && i < N_ELEMS; i++) {
        float g = tensor == MATRIX || tensor == TWIN
                      ? matrix_grad_of(i, rank, moment)
                      : grad_of(tensor, op, weight[i], i, rank, moment);

        if (tensor == MATRIX) {
            bf16[i] = cst_fp32_to_bf16(g);
        } else {
            grad[i] = io->accumulate ? grad[i] + g : g;
        }
    }
}

static void run_operator(struct run *run, int op, enum cst_direction direction, uint64_t moment)
{
    struct begin begins[WORLD] = {{.op = op, .direction = direction},
                                  {.op = op, .direction = direction}};
    void *args[WORLD] = {&begins[0], &begins[1]};

    two_ranks_drive(run->client, run->job, try_begin, args);
    for (unsigned r = 0; r < WORLD; r++) {
        for (int k = 0; direction == CST_BACKWARD && k < 2; k++) {
            write_grad(&begins[r].io[k], tensors_of[op][k], op, r, moment);
        }
        OK(cst_op_end(run->job[r], op, &err));
    }
}

static void kill_engine(void)
{
    pid_t pid = raw_stat(&witness)->engines[0]->pid;

    ck_assert(pid == 0 || kill(pid, SIGKILL) == 0); /* 0: it is being restarted. */
}

static void train_step(struct run *run, uint64_t step)
{
    const uint32_t n = run->form->micro_batches > 1 ? run->form->micro_batches : 1;

    for (uint32_t m = 0; m < n; m++) {
        for (int op = 0; op < N_OPS; op++) {
            run_operator(run, op, CST_FORWARD, 0);
        }
        if (run->form->kill && step % 2 == 0) {
            kill_engine();
        }
        for (int op = N_OPS - 1; op >= 0; op--) {
            run_operator(run, op, CST_BACKWARD, step * n + m);
        }
        for (unsigned r = 0; m + 1 < n && r < WORLD; r++) {
            OK(cst_accumulate(run->job[r], &err));
        }
    }
    two_ranks_drive(run->client, run->job, try_step, NULL);
    if (run->form->kill && step % 2 == 1) {
        kill_engine();
    }
}

static void read_states(struct run *run, int tensor, struct states *out)
{
    struct cst_job *job = run->job[0];
    float master[N_ELEMS];

    OK(cst_tensor_read(job, tensor, CST_STATE_WEIGHT, 0, N_ELEMS, out->weight, &err));
    OK(cst_tensor_read(job, tensor, CST_STATE_MASTER, 0, N_ELEMS, master, &err));
    ck_assert_mem_eq(master, out->weight, sizeof master);
    OK(cst_tensor_read(job, tensor, CST_STATE_EXP_AVG, 0, N_ELEMS, out->exp_avg, &err));
    OK(cst_tensor_read(job, tensor, CST_STATE_EXP_AVG_SQ, 0, N_ELEMS, out->exp_avg_sq, &err));
    if (run->form->overlap == CST_OVERLAP_COMMIT) {
        OK(cst_tensor_read(job, tensor, CST_STATE_GRAD, 0, N_ELEMS, out->grad, &err));
    }
}

/* -- the reference ---------------------------------------------------------------------------- */

/* Sum the gradients of micro-batch @moment of @tensor over the ranks into @grad. */
static void sum_grads(int tensor, const float *used, uint64_t moment, bool accumulate, float *grad)
{
    static float of_rank[WORLD][N_ELEMS];
    const float *src[WORLD] = {of_rank[0], of_rank[1]};

    for (unsigned r = 0; r < WORLD; r++) {
        for (int op = N_OPS - 1, n = 0; op >= 0; op--) {
            if (tensors_of[op][0] != tensor && tensors_of[op][1] != tensor) {
                continue;
            }
            for (uint32_t i = 0; i < N_ELEMS; i++) {
                float g = grad_of(tensor, op, used[i], i, r, moment);

                of_rank[r][i] = n > 0 ? of_rank[r][i] + g : g;
            }
            n++;
        }
    }
    (void)cst_accumulate_fp32_ref(N_ELEMS, WORLD, src, accumulate, grad);
}

/* Train @tensor as the job of @form does. */
static void reference(const struct form *form, int tensor, struct states *out)
{
    const uint32_t n = form->micro_batches > 1 ? form->micro_batches : 1;
    float used[N_ELEMS];

    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < N_ELEMS; i++) {
        out->weight[i] = used[i] = start_of(tensor, i);
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        struct cst_update_scalars scalars;

        for (uint32_t m = 0; m < n; m++) {
            sum_grads(tensor, used, step * n + m, m > 0, out->grad);
        }
        if (form->overlap == CST_OVERLAP_DELAYED) {
            memcpy(used, out->weight, sizeof used);
        }
        cst_update_prepare(&scalars, (double)params.lr, 0.9, 0.999, 1e-8,
                           (double)params.weight_decay, 1.0f, step + 1);
        adamw_update(&cst_update_ref, &scalars, N_ELEMS, NULL, out->grad, out->weight, out->exp_avg,
                     out->exp_avg_sq, NULL);
        if (form->overlap != CST_OVERLAP_DELAYED) {
            memcpy(used, out->weight, sizeof used);
        }
    }
}

static void check_same(const struct form *form, int tensor, const struct states *got,
                       const struct states *want)
{
    const bool grads = form->overlap == CST_OVERLAP_COMMIT;

    ck_assert_msg(memcmp(got->weight, want->weight, sizeof got->weight) == 0 &&
                      memcmp(got->exp_avg, want->exp_avg, sizeof got->exp_avg) == 0 &&
                      memcmp(got->exp_avg_sq, want->exp_avg_sq, sizeof got->exp_avg_sq) == 0 &&
                      (!grads || memcmp(got->grad, want->grad, sizeof got->grad) == 0),
                  "%s, tensor %d: other bits", form->name, tensor);
}

/* Read the master weights and the moments of @tensor. */
static void read_masters(struct run *run, int tensor, struct states *out)
{
    struct cst_job *job = run->job[0];
    const bool muon = run->form->optimizer == CST_OPTIMIZER_MUON;
    struct cst_err why = {0};
    int rc;

    memset(out, 0, sizeof *out);
    OK(cst_tensor_read(job, tensor, CST_STATE_MASTER, 0, N_ELEMS, out->weight, &err));
    OK(cst_tensor_read(job, tensor, CST_STATE_EXP_AVG, 0, N_ELEMS, out->exp_avg, &err));
    rc = cst_tensor_read(job, tensor, CST_STATE_EXP_AVG_SQ, 0, N_ELEMS, out->exp_avg_sq, &why);
    ck_assert_int_eq(rc, muon ? CST_EUNSUPPORTED : CST_OK);
}

/* The fp32 matrix has the states of the bf16 one. */
static void check_twins(struct run *run)
{
    static struct states matrix, twin;

    read_masters(run, MATRIX, &matrix);
    read_masters(run, TWIN, &twin);
    ck_assert_msg(memcmp(&matrix, &twin, sizeof matrix) == 0,
                  "%s: the fp32 matrix has other bits than the bf16 one", run->form->name);
    for (uint32_t i = 0; i < N_ELEMS; i++) {
        ck_assert(twin.weight[i] != start_of(TWIN, i));
    }
}

/* The states of fp32 tensors have the bits of the reference, and frozen ones stay. Moments in 8
 * bits are compared with those of a run in which nothing dies. */
START_TEST(test_same_bits)
{
    const struct form *form = &forms[_i];
    static struct states got, want;
    struct form calm = *form;
    float frozen[N_ELEMS];
    struct run run, other;

    open_run(&run, form);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        train_step(&run, step);
    }
    if (form->device) {
        const Cistern__JobInfo *info = raw_job_info(&witness, "j");

        ck_assert_uint_gt(info->n_device_updates, 0);
    }
    OK(cst_tensor_read(run.job[1], FROZEN, CST_STATE_WEIGHT, 0, N_ELEMS, frozen, &err));
    for (uint32_t i = 0; i < N_ELEMS; i++) {
        ck_assert(frozen[i] == start_of(FROZEN, i));
    }
    if (form->moments == CST_MOMENTS_FP32) {
        check_twins(&run);
        for (int t = NORM; t <= BIAS; t++) {
            read_states(&run, t, &got);
            reference(form, t, &want);
            check_same(form, t, &got, &want);
        }
        close_run(&run);
        return;
    }
    read_states(&run, NORM, &got);
    close_run(&run);
    calm.kill = false;
    open_run(&other, &calm);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        train_step(&other, step);
    }
    read_states(&other, NORM, &want);
    check_same(form, NORM, &got, &want);
    close_run(&other);
}
END_TEST

static void remove_dir(const char *path)
{
    char command[320];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    ck_assert_int_eq(system(command), 0);
}

/* A checkpoint has the weights of fp32 tensors once, and a new job that loads it goes on with the
 * same bits. (With delayed updates the first step of the new job is another one: it reads the
 * newest weights.) */
START_TEST(test_checkpoint)
{
    const struct form *form = &forms[_i];
    char dir[] = "/tmp/cistern-fp32-XXXXXX";
    static struct states got, want;
    struct cst_save_spec spec = {.dir = dir};
    struct cst_client *saver;
    struct run run;

    if (form->overlap == CST_OVERLAP_DELAYED) {
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(dir));
    open_run(&run, form);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        train_step(&run, step);
        if (step == 1) {
            OK(cst_connect(&saver, proc.socket, &err));
            OK(cst_save(saver, "j", &spec, NULL, &err));
            cst_disconnect(saver);
        }
    }
    read_states(&run, NORM, &want);
    close_run(&run);
    open_run(&run, form);
    OK(cst_load(run.job[0], dir, NULL, &err));
    for (uint64_t step = 2; step < N_STEPS; step++) {
        train_step(&run, step);
    }
    read_states(&run, NORM, &got);
    check_same(form, NORM, &got, &want);
    close_run(&run);
    remove_dir(dir);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fp32");
    TCase *tcase = suite_case(suite, "fp32", job_rig_setup, teardown);
    TCase *paced = suite_case(suite, "paced", setup_paced, teardown);

    tcase_set_timeout(tcase, 60);
    tcase_set_timeout(paced, 60);
    suite_add_loop(tcase, test_same_bits, 0, FIRST_PACED);
    suite_add_loop(tcase, test_checkpoint, 0, 6);
    suite_add_loop(paced, test_same_bits, FIRST_PACED, N_FORMS);
    return suite_run(suite);
}
