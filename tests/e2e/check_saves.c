/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of cst_save and cst_load with the daemon: a job that goes back to an earlier step, jobs
 * that share tensors with a base, names that look like those of states, other formats of moments,
 * and calls that do not wait. tests/e2e/checkpoint.sh tests whole trainings. */
#include "cistern/checkpoint.h"
#include "tests/lib/patience.h"
#include "tests/lib/save_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 5000, MAX_TENSORS = 3 };

struct job {
    struct cst_client *client;
    struct cst_job *job;
    int n_tensors;
};

static struct cst_err err;

#define OK(call) ck_assert_msg((call) == CST_OK, "%s: %s", #call, err.text)

/* -- a job of one rank ------------------------------------------------------------------------- */

/* Open the job of @spec with the tensors @names, of which "frozen" is frozen, and commit it. */
static struct job open_job(const struct cst_job_spec *spec, const char *const *names)
{
    struct job j = {0};
    const int64_t shape = N;

    OK(cst_connect(&j.client, proc.socket, &err));
    OK(cst_job_open(&j.job, j.client, spec, &err));
    for (; j.n_tensors < MAX_TENSORS && names[j.n_tensors] != NULL; j.n_tensors++) {
        const char *name = names[j.n_tensors];
        const struct cst_tensor_spec tensor = {
            .name = name,
            .dtype = CST_BF16,
            .n_dims = 1,
            .shape = &shape,
            .pattern = strcmp(name, "frozen") == 0 ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD,
            .lr_scale = 1,
            .decay_scale = 1,
        };

        ck_assert_int_eq(cst_tensor_as(j.job, &tensor), j.n_tensors);
        ck_assert_int_eq(cst_operator(j.job, name, &j.n_tensors, 1), j.n_tensors);
    }
    OK(cst_commit(j.job, NULL, &err));
    return j;
}

static void write_master(struct job *j, int tensor)
{
    float *start = malloc(N * sizeof *start);

    for (uint32_t i = 0; i < N; i++) {
        start[i] = (float)((i * 2654435761u + (uint32_t)tensor) >> 12) / (1 << 20) - 0.5f;
    }
    OK(cst_tensor_write(j->job, tensor, CST_STATE_MASTER, 0, N, start, &err));
    free(start);
}

static void write_start(struct job *j)
{
    for (int t = 0; t < j->n_tensors; t++) {
        write_master(j, t);
    }
}

/* A step in which the gradients are the weights' bits. */
static void step(struct job *j)
{
    const struct cst_hyper_params params = {.lr = 0.01f, .weight_decay = 0.1f};
    struct cst_io io;

    for (int t = 0; t < j->n_tensors; t++) {
        OK(cst_op_begin(j->job, t, CST_FORWARD, &io, 1, &err));
        OK(cst_op_end(j->job, t, &err));
    }
    for (int t = j->n_tensors; t-- > 0;) {
        OK(cst_op_begin(j->job, t, CST_BACKWARD, &io, 1, &err));
        if (io.grad != NULL) {
            memcpy(io.grad, io.weight, N * sizeof(uint16_t));
        }
        OK(cst_op_end(j->job, t, &err));
    }
    OK(cst_step(j->job, &params, NULL, &err));
}

static void leave(struct job *j)
{
    OK(cst_job_leave(j->job, &err));
    cst_disconnect(j->client);
}

static void save(struct job *j, const char *name, uint64_t step)
{
    const struct cst_save_spec spec = {.dir = save_rig_path(name)};
    struct cst_save_result result;

    OK(cst_save(j->client, name, &spec, &result, &err));
    ck_assert_uint_eq(result.step, step);
}

static float *read_state(struct job *j, int tensor, enum cst_state state)
{
    float *out = malloc(N * sizeof *out);

    OK(cst_tensor_read(j->job, tensor, state, 0, N, out, &err));
    return out;
}

static void assert_same(struct job *j, int tensor, enum cst_state state, const float *want)
{
    float *got = read_state(j, tensor, state);

    ck_assert_mem_eq(got, want, N * sizeof *got);
    free(got);
}

/* -- tests ------------------------------------------------------------------------------------- */

/* A job that was trained further and is loaded from an earlier step makes the later steps again,
 * with the same bits: none of their updates counts as done, although the job has made an update of
 * that number. */
START_TEST(goes_back)
{
    static const char *const names[] = {"a", "b", NULL};
    const struct cst_job_spec spec = {.name = "m", .world = 1};
    struct cst_load_result result;
    struct job j = open_job(&spec, names);
    float *after[4];

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    save(&j, "m", 1);
    for (int i = 0; i < _i; i++) {
        step(&j);
    }
    for (int i = 0; i < 4; i++) {
        after[i] = read_state(&j, i / 2, i % 2 == 0 ? CST_STATE_MASTER : CST_STATE_EXP_AVG_SQ);
    }
    leave(&j);
    j = open_job(&spec, names);
    OK(cst_load(j.job, save_rig_step("m", 1), &result, &err));
    ck_assert(result.step == 1 && !result.converted);
    OK(cst_sync(j.job, NULL, &err));
    for (int i = 0; i < _i; i++) {
        step(&j);
    }
    for (int i = 0; i < 4; i++) {
        assert_same(&j, i / 2, i % 2 == 0 ? CST_STATE_MASTER : CST_STATE_EXP_AVG_SQ, after[i]);
        free(after[i]);
    }
    save(&j, "m", 1 + (uint64_t)_i);
    leave(&j);
}
END_TEST

/* If only the saved job, or only this one, has the frozen tensors of a base job, nothing is
 * loaded. */
START_TEST(frozen_of_a_base)
{
    static const char *const names[] = {"frozen", "a", NULL}, *const shared[] = {"frozen", NULL};
    const struct cst_job_spec base = {.name = "base", .world = 1};
    const struct cst_job_spec lora = {.name = "m", .world = 1, .model.base = "base"};
    const struct cst_job_spec alone = {.name = "alone", .world = 1};
    struct job j = open_job(&base, shared);

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    leave(&j);
    j = open_job(&lora, names);
    write_master(&j, 1);
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    save(&j, "m", 1);
    leave(&j);

    j = open_job(&alone, names);
    ck_assert_int_eq(cst_load(j.job, save_rig_step("m", 1), NULL, &err), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "'frozen'"));
    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    step(&j);
    save(&j, "alone", 2);
    leave(&j);

    j = open_job(&lora, names);
    ck_assert_int_eq(cst_load(j.job, save_rig_step("alone", 2), NULL, &err), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "'frozen'"));
    OK(cst_load(j.job, save_rig_step("m", 1), NULL, &err));
    leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, "m"), CST_OK);
}
END_TEST

/* A tensor with the longest name is saved and loaded. */
START_TEST(longest_name)
{
    char name[256];
    const char *const names[] = {name, NULL};
    const struct cst_job_spec spec = {.name = "m", .world = 1};
    struct job j;
    float *before;

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    j = open_job(&spec, names);
    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    save(&j, "m", 1);
    before = read_state(&j, 0, CST_STATE_EXP_AVG);
    step(&j);
    OK(cst_load(j.job, save_rig_step("m", 1), NULL, &err));
    assert_same(&j, 0, CST_STATE_EXP_AVG, before);
    free(before);
    leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, "m"), CST_OK);
}
END_TEST

/* A tensor may have the name of another tensor's state. */
START_TEST(names_of_states)
{
    static const char *const names[] = {"a", "a.exp_avg", "a.master", NULL};
    const struct cst_job_spec spec = {.name = "m", .world = 1, .states.moments = CST_MOMENTS_BF16};
    struct job j = open_job(&spec, names);
    float *before[MAX_TENSORS];

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    save(&j, "m", 1);
    for (int t = 0; t < MAX_TENSORS; t++) {
        before[t] = read_state(&j, t, CST_STATE_EXP_AVG);
    }
    leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, "m"), CST_OK);
    j = open_job(&spec, names);
    OK(cst_load(j.job, save_rig_step("m", 1), NULL, &err));
    for (int t = 0; t < MAX_TENSORS; t++) {
        assert_same(&j, t, CST_STATE_EXP_AVG, before[t]);
        free(before[t]);
    }
    leave(&j);
}
END_TEST

/* Moments of any format are loaded into a job of any other one, as if they were read from the one
 * job and written to the other. The result says that they were converted. */
START_TEST(other_moments)
{
    static const char *const names[] = {"a", "b", NULL};
    const struct cst_job_spec from = {
        .name = "from", .world = 1, .states.moments = (enum cst_moments)(_i % CST_MOMENTS_COUNT)};
    const struct cst_job_spec to = {
        .name = "to", .world = 1, .states.moments = (enum cst_moments)(_i / CST_MOMENTS_COUNT)};
    const enum cst_state states[] = {CST_STATE_EXP_AVG, CST_STATE_EXP_AVG_SQ};
    struct job j = open_job(&from, names), k;
    struct cst_load_result result;

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    save(&j, "from", 1);
    k = open_job(&to, names);
    write_start(&k);
    for (int i = 0; i < 4; i++) {
        float *want = read_state(&j, i / 2, states[i % 2]);

        OK(cst_tensor_write(k.job, i / 2, states[i % 2], 0, N, want, &err));
        free(want);
    }
    leave(&j);
    j = k;
    for (int i = 0; i < 4; i++) {
        float *want = read_state(&j, i / 2, states[i % 2]);

        OK(cst_load(j.job, save_rig_path("from"), &result, &err));
        ck_assert_int_eq(result.converted, from.states.moments != to.states.moments);
        assert_same(&j, i / 2, states[i % 2], want);
        free(want);
    }
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    leave(&j);
}
END_TEST

/* If an older checkpoint cannot be removed, the call fails, and says that the new one is whole. */
START_TEST(one_too_many)
{
    static const char *const names[] = {"a", NULL};
    const struct cst_job_spec spec = {.name = "m", .world = 1};
    const struct cst_save_spec to = {.dir = save_rig_path("m"), .keep = 1};
    struct cst_save_result result;
    struct job j = open_job(&spec, names);
    char foreign[128];

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    save(&j, "m", 0);
    ck_assert_int_eq(cst_save(j.client, "m", &to, &result, &err), CST_EEXIST);
    ck_assert_uint_eq(result.bytes, 0);
    (void)snprintf(foreign, sizeof foreign, "%s/notes", save_rig_step("m", 0));
    ck_assert_int_eq(close(open(foreign, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
    step(&j);
    ck_assert_int_eq(cst_save(j.client, "m", &to, &result, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "notes"));
    ck_assert(result.step == 1 && result.bytes > 0);
    OK(cst_load(j.job, save_rig_step("m", 1), NULL, &err));
    leave(&j);
}
END_TEST

/* -- calls that do not wait -------------------------------------------------------------------- */

static void await(const struct cst_client *client)
{
    struct pollfd fd = {.fd = cst_client_fd(client), .events = POLLIN};

    ck_assert_int_eq(poll(&fd, 1, -1), 1);
}

static unsigned count_names(void)
{
    DIR *list = opendir(save_rig_path("m"));
    unsigned n = 0;

    if (list == NULL) {
        ck_assert_int_eq(errno, ENOENT); /* The save ended before it made the directory. */
        return 0;
    }
    while (readdir(list) != NULL) {
        n++;
    }
    (void)closedir(list);
    return n - 2; /* "." and ".." */
}

/* One thread saves a job and trains it meanwhile. The checkpoint has the states of the step in
 * which the save began. It is loaded without waiting, too. */
START_TEST(without_waiting)
{
    static const char *const names[] = {"a", "b", NULL};
    const struct cst_job_spec spec = {.name = "m", .world = 1, .states.moments = CST_MOMENTS_MX8};
    const struct cst_hyper_params params = {.lr = 0.01f};
    const struct cst_save_spec to = {.dir = save_rig_path("m")};
    struct cst_save_result saved;
    struct cst_load_result loaded;
    struct job j = open_job(&spec, names);
    struct cst_client *saver;
    float *before, other;
    int rc, stepped = CST_EAGAIN, n = 0;

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    step(&j);
    before = read_state(&j, 1, CST_STATE_MASTER);
    OK(cst_connect(&saver, proc.socket, &err));
    while ((rc = cst_try_save(saver, "m", &to, &saved, &err)) == CST_EAGAIN) {
        n++;
        ck_assert_int_eq(cst_ping(saver, NULL, &err), CST_EBUSY);
        if (stepped == CST_EAGAIN) {
            stepped = cst_try_step(j.job, &params, NULL, &err);
        }
        await(saver);
    }
    ck_assert_msg(rc == CST_OK, "%s", err.text);
    ck_assert_int_gt(n, 2);
    ck_assert_uint_eq(saved.step, 1);
    OK(cst_ping(saver, NULL, &err));
    while (stepped == CST_EAGAIN) {
        await(j.client);
        stepped = cst_try_step(j.job, &params, NULL, &err);
    }
    ck_assert_int_eq(stepped, CST_OK);
    leave(&j);
    cst_disconnect(saver);

    j = open_job(&spec, names);
    for (n = 0; (rc = cst_try_load(j.job, save_rig_path("m"), &loaded, &err)) == CST_EAGAIN; n++) {
        ck_assert_int_eq(cst_sync(j.job, NULL, &err), CST_EBUSY);
        ck_assert_int_eq(cst_tensor_read(j.job, 0, CST_STATE_MASTER, 0, 1, &other, &err),
                         CST_EBUSY);
        await(j.client);
    }
    ck_assert_msg(rc == CST_OK, "%s", err.text);
    ck_assert_int_gt(n, 0);
    ck_assert_uint_eq(loaded.step, 1);
    assert_same(&j, 1, CST_STATE_MASTER, before);
    free(before);
    leave(&j);
}
END_TEST

/* Return what cst_checkpoints, which compares checksums, says of the only checkpoint of "m". */
static struct cst_checkpoint look(void)
{
    struct cst_checkpoint *found, first;
    uint32_t n;

    OK(cst_checkpoints(save_rig_path("m"), true, &found, &n, &err));
    ck_assert_uint_eq(n, 1);
    first = *found;
    free(found);
    return first;
}

/* Buffers are a file of the checkpoint like any other: it is not whole without them. */
START_TEST(with_buffers)
{
    static const char *const names[] = {"a", "b", NULL};
    static const char data[] = "buffers of a model", other[] = "Buffers of a model";
    const struct cst_job_spec spec = {.name = "m", .world = 1};
    const struct cst_save_spec to = {
        .dir = save_rig_path("m"), .buffers = data, .buffers_bytes = sizeof data};
    struct job j = open_job(&spec, names);
    char path[128], got[sizeof data];
    int fd;

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    OK(cst_save(j.client, "m", &to, NULL, &err));
    leave(&j);
    ck_assert_msg(look().whole, "%s", look().why);

    (void)snprintf(path, sizeof path, "%s/buffers.safetensors", save_rig_step("m", 0));
    fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(read(fd, got, sizeof got), (ssize_t)sizeof got);
    ck_assert_mem_eq(got, data, sizeof data);
    ck_assert_int_eq(pwrite(fd, other, sizeof other, 0), (ssize_t)sizeof other);
    ck_assert(!look().whole && strstr(look().why, "buffers.safetensors was altered") != NULL);
    ck_assert_int_eq(pwrite(fd, data, sizeof data, 0), (ssize_t)sizeof data);
    ck_assert(look().whole);
    ck_assert_int_eq(close(fd), 0);

    j = open_job(&spec, names);
    OK(cst_load(j.job, save_rig_path("m"), NULL, &err));
    leave(&j);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert(!look().whole && strstr(look().why, "buffers.safetensors") != NULL);
}
END_TEST

static void ask_more(void *arg, uint64_t step)
{
    struct cst_client *client = arg;
    const struct cst_save_spec to = {.dir = save_rig_path("m")};

    ck_assert_uint_eq(step, 0);
    OK(cst_ping(client, NULL, &err));
    ck_assert_int_eq(cst_save(client, "m", &to, NULL, &err), CST_EBUSY);
    ck_assert_int_eq(cst_try_save(client, "m", &to, NULL, &err), CST_EBUSY);
}

/* When a save has begun, its client can be used for requests, but not for another save. */
START_TEST(called_from_a_save)
{
    static const char *const names[] = {"a", NULL};
    const struct cst_job_spec spec = {.name = "m", .world = 1};
    struct job j = open_job(&spec, names);
    const struct cst_save_spec to = {
        .dir = save_rig_path("m"), .on_begun = ask_more, .arg = j.client};

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    OK(cst_save(j.client, "m", &to, NULL, &err));
    leave(&j);
}
END_TEST

/* A client that disconnects while its save is pending, in each of its phases, leaves nothing, and
 * the job can be saved again. */
START_TEST(given_up)
{
    static const char *const names[] = {"a", "b", NULL};
    const struct cst_job_spec spec = {.name = "m", .world = 1};
    const struct cst_save_spec to = {.dir = save_rig_path("m")};
    struct job j = open_job(&spec, names);
    struct cst_client *saver;
    int rc = CST_EAGAIN;

    write_start(&j);
    OK(cst_sync(j.job, NULL, &err));
    OK(cst_connect(&saver, proc.socket, &err));
    for (int i = 0; i < _i && rc == CST_EAGAIN; i++) {
        rc = cst_try_save(saver, "m", &to, NULL, &err);
        if (rc == CST_EAGAIN) {
            await(saver);
        }
    }
    cst_disconnect(saver);
    ck_assert_uint_eq(count_names(), rc == CST_OK);
    OK(cst_connect(&saver, proc.socket, &err));
    while (rc != CST_OK && (rc = cst_save(saver, "m", &to, NULL, &err)) == CST_EBUSY) {
        /* The daemon has not seen the end of the other connection yet. */
    }
    ck_assert_msg(rc == CST_OK, "%s", err.text);
    cst_disconnect(saver);
    leave(&j);
}
END_TEST

/* Run `cistern drain --save` with a short grace, in which a save can begin; *said, of @size bytes,
 * is what it printed. Returns its exit status. */
static int drain(char *said, size_t size)
{
    char command[512];
    FILE *from;
    size_t n;

    (void)snprintf(command, sizeof command,
                   "./cistern drain --manager-socket %s --grace %d --save %s/drained 2>&1",
                   proc.manager, patience_ms(1000) / 1000, save_rig_dir);
    from = popen(command, "r"); /* NOLINT(cert-env33-c): the test's own program */
    ck_assert_ptr_nonnull(from);
    n = fread(said, 1, size - 1, from);
    said[n] = '\0';
    return WEXITSTATUS(pclose(from));
}

/* A job whose step has begun its updates and is not committed, and whose own time limit is an hour,
 * keeps `cistern drain --save` from saving other jobs for the time of --grace only. The daemon and
 * both jobs go on, and the save that was given up is no more. */
START_TEST(drain_goes_on)
{
    static const char *const names[] = {"a", "b", NULL};
    const struct cst_job_spec early = {.name = "early",
                                       .world = 1,
                                       .limits.timeout_ms = 3600000,
                                       .updates.overlap = CST_OVERLAP_EARLY};
    const struct cst_job_spec other = {.name = "other", .world = 1};
    const struct cst_hyper_params params = {.lr = 0.01f};
    struct job j = open_job(&early, names), k = open_job(&other, names);
    struct cst_io io;
    char said[2048];

    write_start(&j);
    write_start(&k);
    OK(cst_sync(j.job, NULL, &err));
    OK(cst_sync(k.job, NULL, &err));
    step(&j);
    step(&k);
    OK(cst_prepare_step(j.job, &params, &err));
    for (int t = j.n_tensors; t-- > 0;) {
        OK(cst_op_begin(j.job, t, CST_BACKWARD, &io, 1, &err));
        memcpy(io.grad, io.weight, N * sizeof(uint16_t));
        OK(cst_op_end(j.job, t, &err));
    }

    ck_assert_int_eq(drain(said, sizeof said), 1);
    ck_assert_msg(strstr(said, "saved step 1 of other") != NULL, "%s", said);
    ck_assert_msg(strstr(said, "'early'") != NULL && strstr(said, "(--grace)") != NULL, "%s", said);
    ck_assert_msg(strstr(said, "the daemon goes on") != NULL, "%s", said);

    OK(cst_step(j.job, &params, NULL, &err));
    save(&j, "early", 2);
    leave(&j);
    leave(&k);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("saves");
    TCase *tcase = suite_case(suite, "saves", save_rig_setup, save_rig_teardown);

    suite_add_loop(tcase, goes_back, 1, 4);
    tcase_add_test(tcase, frozen_of_a_base);
    tcase_add_test(tcase, longest_name);
    tcase_add_test(tcase, names_of_states);
    suite_add_loop(tcase, other_moments, 0, CST_MOMENTS_COUNT * CST_MOMENTS_COUNT);
    tcase_add_test(tcase, one_too_many);
    tcase_add_test(tcase, without_waiting);
    tcase_add_test(tcase, with_buffers);
    tcase_add_test(tcase, called_from_a_save);
    suite_add_loop(tcase, given_up, 1, 8);
    tcase_add_test(tcase, drain_goes_on);
    return suite_run(suite);
}
