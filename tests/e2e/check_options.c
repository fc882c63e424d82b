/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what becomes of each option of a job (proto/job_options.def) if a rank opens a job that
 * exists: none is ignored without a word. The traits of the table say what is expected, and a row
 * without one of them fails. */
#include "cistern/cistern.h"
#include "proto/job_options.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char twice[512]; /* The directory, two times: two drives (drives_daemon). */

static void start(void)
{
    daemon_proc_drives();
    train_rig_start("[host]\nnodes = 0\n[paced]\ndevices = 1\nmemory = 64M\n",
                    (const char *[]){"--engine-threads=2", NULL});
    (void)snprintf(twice, sizeof twice, "%s,%s", disk_file_dir(), disk_file_dir());
}

/* A value of an option that a job does not have by default. */
struct other {
    const char *member, *value;
    /* An option without which the value is not possible, and its value; NULL: there is none. */
    const char *needs, *needs_value;
    const char *tested; /* Where the option is tested instead; NULL: here. */
};

static const struct other others[] = {
    {.member = "world", .value = "2"},
    {.member = "nodes.first_rank", .tested = "tests/e2e/several_nodes.sh"},
    {.member = "nodes.all_ranks", .tested = "tests/e2e/several_nodes.sh"},
    {.member = "updates.block_ranks", .value = "1"},
    {.member = "device", .value = "paced:0"},
    {.member = "updates.delay_from",
     .value = "5",
     .needs = "updates.overlap",
     .needs_value = "delayed"},
    {.member = "states.disk", .value = twice},
    {.member = "states.disk_bytes", .value = "64K", .needs = "states.disk", .needs_value = twice},
    {.member = "states.durable", .value = "", .needs = "states.disk", .needs_value = twice},
    {.member = "states.versions", .value = "2"},
    {.member = "memory.pool_bytes", .value = "384K"},
    {.member = "memory.device_states",
     .value = "2M",
     .needs = "memory.device_update_bytes",
     .needs_value = "4M"},
    {.member = "planning.chunk_elems", .value = "131072"},
    {.member = "planning.plan_file", .tested = "tests/e2e/plan_given.sh"},
    {.member = "model.base", .tested = "tests/e2e/check_base.c"},
    {.member = "model.model_config",
     .value = "{\"a\": 1}",
     .needs = "model.model_config",
     .needs_value = "{\"a\": 2}"},
    {.member = "model.adapter_config", .value = "{\"a\": 1}"},
};

/* Values for all other options of a kind. */
static const char *const usual[] = {
    [CST_VALUE_FLAG] = "", [CST_VALUE_U32] = "7", [CST_VALUE_U64] = "7", [CST_VALUE_SIZE] = "1M"};

static const struct cst_option *option_of(const char *member)
{
    const struct cst_option *o = cst_job_options;

    while (o->field != NULL && strcmp(o->member, member) != 0) {
        o++;
    }
    ck_assert_msg(o->field != NULL, "no option '%s'", member);
    return o;
}

static struct other other_of(const struct cst_option *o)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(others[i].member, o->member) == 0) {
            return others[i];
        }
    }
    return (struct other){.member = o->member,
                          .value = o->value.kind == CST_VALUE_NAME ? o->value.names[1]
                                                                   : usual[o->value.kind]};
}

static void set(struct cst_job_spec *spec, const char *member, const char *value)
{
    struct cst_err err;
    int rc = cst_value_read(&option_of(member)->value, spec, value, &err);

    ck_assert_msg(rc == CST_OK, "%s %s: %s", member, value, err.text);
}

static const struct cst_job_spec plain = {.name = "options", .world = 1};

/* Open the job, and commit if that succeeds. Returns the first failure. */
static int open_it(const struct cst_job_spec *spec, struct cst_err *err)
{
    struct cst_client *client;
    struct cst_job *job;
    char name[8];
    int rc, w;

    ck_assert_int_eq(cst_connect(&client, proc.socket, err), CST_OK);
    rc = cst_job_open(&job, client, spec, err);
    if (rc == CST_OK) {
        for (int i = 0; i < 4; i++) {
            (void)snprintf(name, sizeof name, "o%d", i);
            w = cst_tensor(job, name, CST_BF16, 2, (int64_t[]){64, 1024}, CST_GROUP_ALL);
            ck_assert_int_ge(cst_operator(job, name, &w, 1), 0);
        }
        rc = cst_commit(job, NULL, err);
    }
    if (rc == CST_OK) {
        rc = cst_job_leave(job, err);
    }
    cst_disconnect(client);
    return rc;
}

static void must_open(const struct cst_job_spec *spec, const char *what)
{
    struct cst_err err = {0};
    int rc = open_it(spec, &err);

    ck_assert_msg(rc == CST_OK, "%s: %s", what, err.text);
}

static void must_refuse(const struct cst_job_spec *spec, const char *what)
{
    struct cst_err err = {0};
    int rc = open_it(spec, &err);

    ck_assert_msg(rc == CST_EMISMATCH, "%s: %d, %s", what, rc, err.text);
    ck_assert_msg(strstr(err.text, "options") != NULL || strstr(err.text, "rank 0") != NULL,
                  "%s: %s", what, err.text);
}

static void remove_it(void)
{
    char path[600];

    ck_assert_int_eq(raw_job_remove(&witness, plain.name), CST_OK);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s.%d.cistern", disk_file_dir(), plain.name, i);
        (void)unlink(path);
    }
}

/* The trait that says what becomes of the option. */
static int fate(const struct cst_option *o)
{
    return o->traits & (CST_JOB_SAME | CST_JOB_COMPARED | CST_JOB_FIRST | CST_JOB_OWN);
}

/* A rank that wants another value than the job has is refused, if the option is compared. One that
 * wants what the job has is accepted, and so is one that leaves out an option that is 0 then for
 * what the job has. */
START_TEST(each_option)
{
    const struct cst_option *o = &cst_job_options[_i];
    const struct other other = other_of(o);
    struct cst_job_spec without = plain, with;

    if (fate(o) == CST_JOB_OWN || other.tested != NULL) {
        return;
    }
    ck_assert_ptr_nonnull(other.value);
    if (other.needs != NULL) {
        set(&without, other.needs, other.needs_value);
    }
    with = without;
    set(&with, o->member, other.value);
    must_open(&without, o->member);
    if (fate(o) == CST_JOB_FIRST) {
        must_open(&with, o->member);
    } else {
        must_refuse(&with, o->member);
    }
    must_open(&without, o->member);
    remove_it();
    if (with.world > 1) {
        return;
    }
    must_open(&with, o->member);
    must_open(&with, o->member);
    if (fate(o) == CST_JOB_SAME) {
        must_refuse(&without, o->member);
    }
    remove_it();
}
END_TEST

/* Each option has one trait that says what becomes of it. */
START_TEST(traits)
{
    for (const struct cst_option *o = cst_job_options; o->field != NULL; o++) {
        const int is = fate(o);

        ck_assert_msg(is != 0 && (is & (is - 1)) == 0, "%s: traits %d", o->member, o->traits);
    }
}
END_TEST

/* Drives that are not those of the job are refused with what the job has, what was asked and the
 * remedy. */
START_TEST(drives)
{
    static const struct {
        const char *has, *wants, *words;
    } cases[] = {{NULL, twice, "has its states in memory, not on "},
                 {twice, NULL, NULL},
                 {twice, twice, NULL},
                 {twice, "one", "has its states on "},
                 {"one", twice, "has its states on "},
                 {"one", "/proc", ", not on 0:"}};
    const char *one = disk_file_dir();
    struct cst_job_spec spec = plain;
    struct cst_err err = {0};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const lists[] = {cases[i].has, cases[i].wants};

        for (int k = 0; k < 2; k++) {
            spec.states.disk = lists[k] != NULL && strcmp(lists[k], "one") == 0 ? one : lists[k];
            if (k == 0 || cases[i].words == NULL) {
                must_open(&spec, "drives");
            } else {
                ck_assert_int_eq(open_it(&spec, &err), CST_EMISMATCH);
                ck_assert_msg(strstr(err.text, cases[i].words) != NULL &&
                                  strstr(err.text, "as rank 0 wants: leave disk out, or give "
                                                   "reshape when the job has no worker") != NULL,
                              "%s", err.text);
                ck_assert_int_eq(err.reason, CST_REASON_OPTION);
            }
        }
        if (cases[i].words != NULL) { /* The remedy. */
            spec.reshape = true;
            spec.states.disk = twice;
            must_open(&spec, "reshape");
            spec.reshape = false;
            must_open(&spec, "drives after the reshape");
        }
        remove_it();
    }
}
END_TEST

/* A durable job keeps its drives. */
START_TEST(durable)
{
    struct cst_job_spec spec = plain;
    struct cst_err err = {0};

    spec.states.disk = twice;
    spec.states.durable = true;
    must_open(&spec, "durable");
    must_open(&spec, "durable");
    spec.states.disk = disk_file_dir();
    ck_assert_int_eq(open_it(&spec, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, "or save the job and load the checkpoint into a new one") !=
                      NULL,
                  "%s", err.text);
    ck_assert_int_eq(err.reason, CST_REASON_FIXED_OPTION);
    remove_it();
}
END_TEST

/* A directory that is not there is named before anything is made, also for a job that exists. */
START_TEST(no_directory)
{
    struct cst_job_spec spec = plain;
    struct cst_err err = {0};

    must_open(&spec, "plain");
    spec.states.disk = "/nonexistent/drive";
    ck_assert_int_eq(open_it(&spec, &err), CST_EIO);
    ck_assert_str_eq(err.text, "disk: directory '/nonexistent/drive': No such file or directory");
    remove_it();
}
END_TEST

static int n_options(void)
{
    int n = 0;

    while (cst_job_options[n].field != NULL) {
        n++;
    }
    return n;
}

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *all = suite_case(suite, "all", start, train_rig_stop);
    TCase *disk = suite_case(suite, "disk", start, train_rig_stop);

    if (disk_file_is_missing("check_options")) {
        return DISK_FILE_SKIP;
    }
    tcase_add_loop_test(all, each_option, 0, n_options());
    tcase_add_test(disk, drives);
    tcase_add_test(disk, durable);
    tcase_add_test(disk, no_directory);
    tcase_add_test(suite_case(suite, "traits", NULL, NULL), traits);
    return suite_run(suite);
}
