/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of checkpoints of jobs whose ranks hold parts of tensors: files have the wholes, as those
 * of a job of one rank do, byte for byte, and a job that is cut in another way loads its parts of
 * them. A checkpoint is made and loaded by one client alone. */
#include "cistern/checkpoint.h"
#include "client/checkpoint/manifest.h"
#include "tests/lib/boxes.h"
#include "tests/lib/patience.h"
#include "tests/lib/save_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct cst_err err;

#define OK(call) ck_assert_msg((call) == CST_OK, "%s: %s", #call, err.text)

/* -- checkpoints ------------------------------------------------------------------------------- */

/* Save the job @name by a client that has no part in it. */
static void save(const char *name)
{
    const struct cst_save_spec spec = {.dir = save_rig_path(name)};
    struct cst_client *client;

    OK(cst_connect(&client, proc.socket, &err));
    OK(cst_save(client, name, &spec, NULL, &err));
    cst_disconnect(client);
}

/* Check that both checkpoints have the same bytes in @file. */
static void same_file(const char *a, const char *b, const char *file)
{
    char command[256];

    (void)snprintf(command, sizeof command, "cmp %s/%s/step-00000000/%s %s/%s/step-00000000/%s",
                   save_rig_dir, a, file, save_rig_dir, b, file);
    ck_assert_msg(system(command) == 0, "%s", command);
}

static void same_files(const char *a, const char *b)
{
    same_file(a, b, "model.safetensors");
    same_file(a, b, "states-00001-of-00001.safetensors");
}

/* Make the job of @spec, cut as @cutting says, with the states @s, and save it. Returns its states
 * as they are read. */
static struct boxes_states *make(const struct cst_job_spec *spec,
                                 const struct boxes_cutting *cutting, struct boxes_states *s)
{
    struct boxes_job j = boxes_open(spec, cutting);
    struct boxes_states *read;

    /* Written twice, blocks have the exponents that they get when their values are encoded again.
     */
    boxes_transfer(&j, s, true);
    read = boxes_read(&j);
    boxes_transfer(&j, read, true);
    boxes_all_ranks(&j, true);
    save(spec->name);
    boxes_leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, spec->name), CST_OK);
    return read;
}

/* Load the checkpoint of the job @from into a job of @spec that is cut as @cutting says, and check
 * that it has the states @s. Those in blocks are compared with what a job has to which the states
 * were written. Returns whether moments were converted. */
static bool load(const struct cst_job_spec *spec, const struct boxes_cutting *cutting,
                 const char *from, struct boxes_states *s)
{
    struct boxes_job j = boxes_open(spec, cutting);
    struct boxes_states *loaded, *written;
    struct cst_load_result result;

    OK(cst_load(j.jobs[0], save_rig_path(from), &result, &err));
    loaded = boxes_read(&j);
    boxes_all_ranks(&j, true);
    boxes_leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, spec->name), CST_OK);
    j = boxes_open(spec, cutting);
    boxes_transfer(&j, s, true);
    boxes_all_ranks(&j, true);
    written = boxes_read(&j);
    boxes_leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, spec->name), CST_OK);
    boxes_assert_same(loaded, written);
    if (spec->states.moments != CST_MOMENTS_MX8) {
        boxes_assert_same(loaded, s);
    }
    free(loaded);
    free(written);
    return result.converted;
}

static struct cst_job_spec spec_of(const char *name, uint32_t world, int kind)
{
    return (struct cst_job_spec){.name = name,
                                 .world = world,
                                 .states.moments = (enum cst_moments)(kind % CST_MOMENTS_COUNT),
                                 .states.masters = (enum cst_masters)(kind / CST_MOMENTS_COUNT),
                                 .limits.timeout_ms = (uint32_t)patience_ms(20000)};
}

enum { KINDS = CST_MOMENTS_COUNT * CST_MASTERS_COUNT };

/* -- tests ------------------------------------------------------------------------------------- */

/* Jobs of four ranks with 2 x 2 parts, and of two stages with two parts each, have the files of one
 * rank. They are loaded as one, as three ranks with parts of rows, as four with parts of columns,
 * as three with copies, as four stages, and as they were, in every format of moments and master
 * weights. */
START_TEST(parts_are_joined_and_cut)
{
    struct boxes_cutting stages = boxes_grid(1, 1);
    const struct boxes_cutting four = boxes_grid(2, 2), two = boxes_grid(2, 1),
                               one = boxes_grid(1, 1), rows = boxes_grid(3, 1),
                               columns = boxes_grid(1, 4);
    const struct cst_job_spec tp = spec_of("tp", 4, _i), tp_pp = spec_of("tp_pp", 4, _i),
                              alone = spec_of("alone", 1, _i), three = spec_of("three", 3, _i);
    struct boxes_states *start, *parts, *whole;

    stages.staged = true;
    srandom(7);
    start = boxes_draw();
    parts = make(&tp, &four, start);
    whole = make(&alone, &one, parts);
    same_files("tp", "alone");
    free(make(&tp_pp, &two, whole));
    /* Parts of 2 x 2 divide the blocks of 32 moments of a whole. */
    ck_assert_int_eq(load(&alone, &one, "tp", whole), tp.states.moments == CST_MOMENTS_MX8);
    (void)load(&three, &rows, "tp", whole);
    (void)load(&tp, &columns, "tp", whole);
    ck_assert(!load(&three, &one, "alone", whole));
    (void)load(&tp, &stages, "tp_pp", whole);
    ck_assert_int_eq(load(&tp, &four, "alone", whole), tp.states.moments == CST_MOMENTS_MX8);
    free(start);
    free(parts);
    free(whole);
}
END_TEST

/* Parts drawn at random become other parts drawn at random. */
START_TEST(random_parts)
{
    const struct boxes_cutting one = boxes_grid(1, 1);

    srandom((unsigned)suite_seed());
    for (int i = 0; i < 6; i++) {
        const struct boxes_cutting from = boxes_cut_at_random(), to = boxes_cut_at_random();
        const int kind = (int)(random() % KINDS);
        const struct cst_job_spec a = spec_of("a", 1 + (uint32_t)(random() % 4), kind),
                                  b = spec_of("b", 1 + (uint32_t)(random() % 4), kind),
                                  alone = spec_of("alone", 1, kind);
        struct boxes_states *start = boxes_draw(), *parts = make(&a, &from, start),
                            *whole = make(&alone, &one, parts);
        char command[64];

        same_files("a", "alone");
        (void)load(&b, &to, "a", whole);
        free(start);
        free(parts);
        free(whole);
        (void)snprintf(command, sizeof command, "rm -r %s/*", save_rig_dir);
        ck_assert_int_eq(system(command), 0);
    }
}
END_TEST

/* -- other checkpoints and jobs ---------------------------------------------------------------- */

/* A job whose parts leave out a range cannot be saved, nor loaded. The words name the range. */
START_TEST(gaps_are_told)
{
    struct boxes_cutting part = boxes_grid(2, 2);
    const struct boxes_cutting four = boxes_grid(2, 2);
    const struct cst_job_spec spec = spec_of("part", 1, 0), whole = spec_of("whole", 1, 0);
    const struct cst_save_spec to = {.dir = save_rig_path("part")};
    struct boxes_states *s = boxes_draw();
    struct boxes_job j;

    free(make(&whole, &four, s));
    part.n[0] = 3;
    j = boxes_open(&spec, &part);
    ck_assert_int_eq(cst_load(j.jobs[0], save_rig_path("whole"), NULL, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, "the elements [35:70, 48:96] of 'w', whose shape is 70x96"),
                  "%s", err.text);
    boxes_transfer(&j, s, true);
    boxes_all_ranks(&j, true);
    ck_assert_int_eq(cst_save(j.clients[0], "part", &to, NULL, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, "the elements [35:70, 48:96] of 'w', whose shape is 70x96"),
                  "%s", err.text);
    ck_assert_int_eq(access(save_rig_path("part"), F_OK), -1);
    boxes_leave(&j);
    free(s);
}
END_TEST

/* Say what a part is part of, as checkpoints of earlier versions do, whose files have the parts. */
static void name_whole(Cistern__TensorDecl *decl)
{
    if (decl->whole_name == NULL) {
        decl->whole_name = strdup(decl->name);
        *strchr(decl->whole_name, '.') = '\0';
    }
}

static void change_type(Cistern__TensorDecl *decl)
{
    decl->dtype = decl->dtype == CST_FP32 ? CST_BF16 : CST_FP32;
}

static void change_update(Cistern__TensorDecl *decl)
{
    decl->has_muon = decl->muon = !decl->muon;
}

/* Change in the checkpoint of the job @name, which is of an earlier version, all parts; or the
 * first part alone. */
static void alter(const char *name, void (*change)(Cistern__TensorDecl *decl), bool all)
{
    struct cstc_manifest manifest;
    const int fd = open(save_rig_step(name, 0), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t bytes;

    OK(cstc_manifest_read(&manifest, fd, &err));
    ck_assert(!manifest.joined);
    for (size_t i = 0, n = 0; i < manifest.description->n_tensors && (all || n == 0); i++) {
        if (manifest.description->tensors[i]->n_whole_shape > 0) {
            change(manifest.description->tensors[i]);
            n++;
        }
    }
    ck_assert_int_eq(unlinkat(fd, CSTC_MANIFEST_NAME, 0), 0);
    OK(cstc_manifest_write(&manifest, fd, &bytes, &err));
    cstc_manifest_close(&manifest);
    ck_assert_int_eq(close(fd), 0);
}

/* A checkpoint with parts under their own names, as of earlier versions, is loaded by a job that
 * has the same parts, whether or not either says what they are parts of. If both do, other parts
 * can be loaded as well. */
START_TEST(earlier_checkpoints)
{
    const struct boxes_cutting four = boxes_grid(2, 2), three = boxes_grid(3, 1);
    const struct cst_job_spec spec = spec_of("m", 4, CST_MOMENTS_BF16),
                              other = spec_of("o", 1, CST_MOMENTS_BF16);
    struct boxes_states *s;

    srandom(9);
    boxes_named = false;
    s = boxes_draw();
    {
        struct boxes_states *read = make(&spec, &four, s);

        free(s);
        s = read;
    }
    (void)load(&spec, &four, "m", s);
    boxes_named = true;
    (void)load(&spec, &four, "m", s);
    alter("m", name_whole, true);
    (void)load(&spec, &four, "m", s);
    (void)load(&other, &three, "m", s);
    boxes_named = false;
    (void)load(&spec, &four, "m", s);
    boxes_named = true;
    free(s);
}
END_TEST

/* Numbers of steps are kept for each tensor that the job has: those of the part that had its first
 * element. */
START_TEST(missed_steps)
{
    const struct boxes_cutting four = boxes_grid(2, 2), columns = boxes_grid(1, 4),
                               one = boxes_grid(1, 1);
    const struct boxes_cutting *const cuts[] = {&four, &columns, &one};
    struct cst_job_spec spec = spec_of("m", 1, 0);
    uint64_t missed[BOXES_TENSORS] = {1, 2, 3, 4, 0, 5}, got[BOXES_TENSORS];
    struct boxes_states *s = boxes_draw();
    struct cst_load_result result;
    struct boxes_job j;

    spec.updates.unused = CST_UNUSED_SKIP;
    j = boxes_open(&spec, &four);
    boxes_transfer(&j, s, true);
    OK(cst_set_steps(j.jobs[0], 9, 1, missed, &err));
    boxes_all_ranks(&j, true);
    save("m");
    boxes_leave(&j);
    ck_assert_int_eq(raw_job_remove(&witness, "m"), CST_OK);
    for (int i = 0; i < 3; i++) {
        j = boxes_open(&spec, cuts[i]);
        OK(cst_load(j.jobs[0], save_rig_path("m"), &result, &err));
        ck_assert_uint_eq(result.step, 9);
        boxes_all_ranks(&j, true);
        OK(cst_missed_steps(j.jobs[0], got, &err));
        if (i == 0) {
            ck_assert_mem_eq(got, missed, sizeof missed[0] * 8);
        } else if (i == 1) { /* Columns 0, 24, 48 and 72 of w; parts of 2 x 2 begin at 0 and 48. */
            ck_assert(got[0] == 1 && got[1] == 1 && got[2] == 2 && got[3] == 2);
        } else {
            ck_assert(got[0] == 1 && got[1] == 0);
        }
        boxes_leave(&j);
        ck_assert_int_eq(raw_job_remove(&witness, "m"), CST_OK);
    }
    free(s);
}
END_TEST

static bool is_of_qkv(void *arg, const char *name)
{
    (void)arg;
    return strncmp(name, "qkv", 3) == 0;
}

/* Parts are cut out of model files, under the external names of their wholes. */
START_TEST(model_files)
{
    const struct boxes_cutting four = boxes_grid(2, 2), one = boxes_grid(1, 1);
    const struct cst_job_spec spec = spec_of("m", 1, 0), other = spec_of("o", 2, 0);
    struct cst_load_model_spec from = {.path = NULL};
    struct cst_load_model_result result;
    struct boxes_states *whole;

    srandom((unsigned)suite_seed());
    whole = boxes_draw();
    {
        struct boxes_states *read = make(&spec, &four, whole);

        free(whole);
        whole = read;
    }
    from.path = save_rig_step("m", 0);
    for (int i = 0; i < 4; i++) {
        const struct boxes_cutting cutting = i == 0 ? one : boxes_cut_at_random();
        struct boxes_job j = boxes_open(&other, &cutting);
        struct boxes_states *s;
        uint32_t n = 0;

        for (int w = 0; w < BOXES_WHOLES; w++) {
            n += (uint32_t)cutting.n[w];
        }
        from.wants = NULL;
        OK(cst_load_model(j.jobs[0], &from, &result, &err));
        ck_assert(result.n_tensors == n && result.n_ignored == 0);
        from.wants = is_of_qkv;
        OK(cst_load_model(j.jobs[0], &from, &result, &err));
        ck_assert(result.n_tensors == (uint32_t)cutting.n[1] && result.n_ignored == 7);
        s = boxes_read(&j);
        for (int w = 0; w < BOXES_WHOLES; w++) {
            if (boxes_wholes[w].frozen) {
                ck_assert_mem_eq(s->weights[w], whole->weights[w], sizeof s->weights[w]);
                ck_assert_mem_eq(s->values[w][0], whole->values[w][0], sizeof s->values[w][0]);
                continue;
            }
            for (int64_t e = 0; e < boxes_count(boxes_wholes[w].shape); e++) {
                const uint32_t bits = (uint32_t)whole->weights[w][e] << 16;
                float wide;

                memcpy(&wide, &bits, sizeof wide);
                wide = boxes_wholes[w].dtype == CST_FP32 ? whole->values[w][0][e] : wide;
                suite_must(s->values[w][0][e] == wide, "%s, element %lld", boxes_wholes[w].name,
                           (long long)e);
            }
        }
        boxes_all_ranks(&j, true);
        boxes_leave(&j);
        ck_assert_int_eq(raw_job_remove(&witness, "o"), CST_OK);
        free(s);
    }
    free(whole);
}
END_TEST

/* Count the checkpoints of the job "m", which are all whole. */
static uint32_t count_whole(void)
{
    struct cst_checkpoint *found = NULL;
    uint32_t n = 0;
    const int rc = cst_checkpoints(save_rig_path("m"), true, &found, &n, &err);

    ck_assert_msg(rc == CST_OK || rc == CST_ENOTFOUND, "%s", err.text);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_msg(found[i].whole, "%s", found[i].why);
    }
    free(found);
    return n;
}

/* A process that is killed while it joins parts leaves no checkpoint, and the job can be saved
 * again. */
START_TEST(killed)
{
    const struct boxes_cutting four = boxes_grid(2, 2);
    const struct cst_job_spec spec = spec_of("m", 4, CST_MOMENTS_MX8);
    const struct cst_save_spec to = {.dir = save_rig_path("m")};
    struct boxes_job j = boxes_open(&spec, &four);
    struct boxes_states *s = boxes_draw();
    int rc = CST_EBUSY, status;
    pid_t pid;

    boxes_transfer(&j, s, true);
    boxes_all_ranks(&j, true);
    pid = fork();
    if (pid == 0) {
        struct cst_client *client;

        for (int i = cst_connect(&client, proc.socket, &err) == CST_OK ? 0 : _i;
             i < _i && cst_try_save(client, "m", &to, NULL, &err) == CST_EAGAIN; i++) {
            boxes_await(client);
        }
        (void)raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    if (count_whole() == 0) {
        while (rc == CST_EBUSY) { /* The daemon has not seen the end of the other process yet. */
            rc = cst_save(j.clients[1], "m", &to, NULL, &err);
        }
        ck_assert_msg(rc == CST_OK, "%s", err.text);
        ck_assert_uint_eq(count_whole(), 1);
    }
    boxes_leave(&j);
    free(s);
}
END_TEST

/* Run a command of `cistern` that succeeds; *said, of @size bytes, is what it printed. */
static void command(const char *words, char *said, size_t size)
{
    char line[512];
    FILE *from;
    size_t n;

    (void)snprintf(line, sizeof line, "./cistern %s 2>&1", words);
    from = popen(line, "r"); /* NOLINT(cert-env33-c): the test's own program */
    ck_assert_ptr_nonnull(from);
    n = fread(said, 1, size - 1, from);
    said[n] = '\0';
    ck_assert_msg(pclose(from) == 0, "%s: %s", line, said);
}

/* `cistern load` makes the job as it was, with its ranks and parts, and `load --frozen` one of the
 * wholes. Both can be saved again, with the same weights. */
START_TEST(command_line)
{
    const struct boxes_cutting four = boxes_grid(2, 2);
    const struct cst_job_spec spec = spec_of("m", 4, CST_MOMENTS_BF16);
    struct boxes_states *s = boxes_draw();
    char words[256], said[1024];

    free(make(&spec, &four, s));
    free(s);
    (void)snprintf(words, sizeof words, "load --socket %s %s", proc.socket, save_rig_path("m"));
    command(words, said, sizeof said);
    ck_assert_msg(strstr(said, "as job m of 4 ranks") != NULL, "%s", said);
    (void)snprintf(words, sizeof words, "save --socket %s m %s", proc.socket,
                   save_rig_path("again"));
    command(words, said, sizeof said);
    same_files("m", "again");
    (void)snprintf(words, sizeof words, "load --socket %s --frozen %s base", proc.socket,
                   save_rig_path("m"));
    command(words, said, sizeof said);
    (void)snprintf(words, sizeof words, "save --socket %s base %s", proc.socket,
                   save_rig_path("frozen"));
    command(words, said, sizeof said);
    same_file("m", "frozen", "model.safetensors");
    (void)snprintf(words, sizeof words, "checkpoints --check %s", save_rig_path("m"));
    command(words, said, sizeof said);
    ck_assert_msg(strstr(said, "step-00000000") != NULL, "%s", said);
}
END_TEST

/* An altered checkpoint of an earlier version, in which the parts of a tensor have other states
 * than each other, is not loaded. _i: what was altered. */
START_TEST(parts_of_other_states)
{
    static void (*const changes[])(Cistern__TensorDecl *) = {change_type, change_update};
    static const char *const words[] = {"only one of them is fp32", "Muon updates only one"};
    const struct boxes_cutting four = boxes_grid(2, 2), three = boxes_grid(3, 1);
    const struct cst_job_spec spec = spec_of("m", 4, CST_MOMENTS_BF16),
                              other = spec_of("o", 1, CST_MOMENTS_BF16);
    struct boxes_states *s = boxes_draw();
    struct boxes_job j;

    boxes_named = false;
    free(make(&spec, &four, s));
    boxes_named = true;
    alter("m", name_whole, true);
    alter("m", changes[_i], false);
    j = boxes_open(&other, &three);
    ck_assert_int_eq(cst_load(j.jobs[0], save_rig_path("m"), NULL, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, words[_i]) != NULL, "%s", err.text);
    boxes_leave(&j);
    free(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("boxes");
    TCase *tcase = suite_case(suite, "boxes", save_rig_setup, save_rig_teardown);

    suite_add_loop(tcase, parts_are_joined_and_cut, 0, KINDS);
    tcase_add_test(tcase, random_parts);
    tcase_add_test(tcase, gaps_are_told);
    tcase_add_test(tcase, earlier_checkpoints);
    tcase_add_loop_test(tcase, parts_of_other_states, 0, 2);
    tcase_add_test(tcase, missed_steps);
    tcase_add_test(tcase, model_files);
    suite_add_loop(tcase, killed, 1, 8);
    tcase_add_test(tcase, command_line);
    return suite_run(suite);
}
