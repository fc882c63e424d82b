/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client/checkpoint/directory: which checkpoints are removed when newer ones are made, and
 * what is never removed or replaced. */
#include "cistern/checkpoint.h"
#include "tests/lib/suite.h"
#include "tests/unit/directory_rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct cst_err err;

/* The newest whole checkpoints remain, and with them torn ones that are newer than the last. */
START_TEST(retention)
{
    for (uint64_t step = 1; step <= 5; step++) {
        save(step);
    }
    touch("step-00000003/model.safetensors");
    touch("step-00000005/model.safetensors");
    ck_assert_int_eq(cstc_directory_keep(path, "job", 2, 4, &err), CST_OK);
    ck_assert(!whole(1) && whole(2) && whole(4));
    ck_assert_uint_eq(count_names(), 4);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 4, &err), CST_OK);
    ck_assert(whole(4) && exists("step-00000005"));
    ck_assert_uint_eq(count_names(), 2);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 0, 4, &err), CST_OK);
    ck_assert(whole(4));
}
END_TEST

/* A checkpoint with a foreign file stays as it is. Others are removed nevertheless. */
START_TEST(foreign)
{
    struct cst_err why;
    int rc;

    for (uint64_t step = 1; step <= 3; step++) {
        save(step);
    }
    touch("step-00000001/buffers.safetensors"); /* Not foreign. */
    touch("step-00000002/notes");
    rc = cstc_directory_keep(path, "job", 1, 3, &why);
    ck_assert(whole(2) && whole(3) && exists("step-00000002/notes"));
    ck_assert(!exists("step-00000001"));
    ck_assert_int_eq(rc, CST_EIO);
    ck_assert_msg(strstr(why.text, path) != NULL && strstr(why.text, "step-00000002") != NULL &&
                      strstr(why.text, "notes") != NULL,
                  "%s", why.text);
}
END_TEST

/* A job that went back to an earlier step keeps what it has just saved. Then the checkpoints with
 * the fewest steps are removed. */
START_TEST(gone_back)
{
    save(5);
    save(6);
    save(1);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 2, 1, &err), CST_OK);
    ck_assert(whole(1) && whole(6) && !exists("step-00000005"));
    save(2);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 2, &err), CST_OK);
    ck_assert(whole(2));
    ck_assert_uint_eq(count_names(), 1);
}
END_TEST

/* Change the format in the manifest of @step to @format. */
static void set_format(uint64_t step, const char *format)
{
    char command[192];

    (void)snprintf(command, sizeof command,
                   "sed -i 's/\"format\": 1,/\"format\": %s,/' %s/step-%08" PRIu64 "/cistern.json",
                   format, path, step);
    ck_assert_int_eq(system(command), 0);
}

/* A checkpoint of a later format is named as such. It is neither removed nor replaced, and none
 * that is older is loaded in its place. What is no format is torn. */
START_TEST(later_format)
{
    char warning[CSTC_LISTING_WARNING_BYTES];
    struct cstc_directory directory;
    struct cst_checkpoint *all;
    uint32_t n;
    int fd;

    save(1);
    save(2);
    save(3);
    set_format(1, "7");
    set_format(2, "-7");
    ck_assert_int_eq(cst_checkpoints(path, true, &all, &n, &err), CST_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(all[0].status, CST_EUNSUPPORTED);
    ck_assert_str_eq(all[0].why, "format 7, this version reads 2");
    ck_assert_int_eq(all[1].status, CST_EINVAL);
    ck_assert(all[2].whole && all[2].status == CST_OK);
    free(all);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 3, &err), CST_OK);
    ck_assert(exists("step-00000001/model.safetensors") && !exists("step-00000002") && whole(3));
    ck_assert_int_eq(cstc_directory_begin(&directory, path, "job", 1, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "format 7, this version reads 2"));
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_OK);
    ck_assert_int_eq(close(fd), 0);
    set_format(3, "7");
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_EUNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "step-00000003: format 7, this version reads 2"));
}
END_TEST

/* A checkpoint that cannot be read now may be whole: it is not removed. */
START_TEST(unreadable)
{
    char full[96];

    drop_rights();
    save(1);
    save(2);
    (void)snprintf(full, sizeof full, "%s/step-00000001/cistern.json", path);
    ck_assert_int_eq(chmod(full, 0), 0);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 2, &err), CST_OK);
    ck_assert_int_eq(chmod(full, 0600), 0);
    regain_rights();
    ck_assert(whole(1) && whole(2));
}
END_TEST

/* A link that has the name of a temporary directory does not let a save remove the files of the
 * checkpoint to which it points. */
START_TEST(linked_stale)
{
    char link[96];

    save(1);
    (void)snprintf(link, sizeof link, "%s/.step-00000009.1-2.tmp", path);
    ck_assert_int_eq(symlink("step-00000001", link), 0);
    save(2);
    ck_assert(whole(1) && whole(2));
}
END_TEST

/* Nobody waits for the writer of a FIFO that has the name of a checkpoint's file. */
START_TEST(fifos)
{
    char full[96];

    save(1);
    save(2);
    (void)snprintf(full, sizeof full, "%s/step-00000001/cistern.json", path);
    ck_assert_int_eq(unlink(full), 0);
    ck_assert_int_eq(mkfifo(full, 0600), 0);
    ck_assert(!whole(1));
    (void)snprintf(full, sizeof full, "%s/step-00000002/model.safetensors", path);
    ck_assert_int_eq(unlink(full), 0);
    ck_assert_int_eq(mkfifo(full, 0600), 0);
    ck_assert(!whole(2));
}
END_TEST

/* A link to a checkpoint elsewhere is not followed to remove that one. */
START_TEST(linked)
{
    char from[96], to[96];

    save(1);
    save(2);
    (void)snprintf(from, sizeof from, "%s/step-00000001", path);
    (void)snprintf(to, sizeof to, "%s/elsewhere", path);
    ck_assert_int_eq(rename(from, to), 0);
    ck_assert_int_eq(symlink("elsewhere", from), 0);
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 2, &err), CST_EIO);
    ck_assert(exists("elsewhere/cistern.json") && exists("elsewhere/model.safetensors"));
}
END_TEST

/* A directory into which somebody has copied checkpoints of two jobs: a load must name one of them,
 * and each job removes only its own. */
START_TEST(mixed_jobs)
{
    char warning[CSTC_LISTING_WARNING_BYTES], command[256];
    struct cst_checkpoint *all;
    struct cstc_directory other;
    uint32_t n;
    int fd;

    (void)snprintf(command, sizeof command, "%s/elsewhere", path);
    ck_assert_int_eq(cstc_directory_begin(&other, command, "other", 5, &err), CST_OK);
    fill(&other);
    ck_assert_int_eq(cstc_directory_commit(&other, &err), CST_OK);
    save(1);
    save(3);
    (void)snprintf(command, sizeof command, "mv %s/elsewhere/step-00000005 %s", path, path);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(cst_checkpoints(path, false, &all, &n, &err), CST_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_str_eq(all[1].job, "job");
    ck_assert_str_eq(all[2].job, "other");
    free(all);
    ck_assert_int_eq(cstc_listing_open(path, &fd, warning, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "the jobs 'other' and 'job'"));
    ck_assert_int_eq(cstc_directory_keep(path, "job", 1, 3, &err), CST_OK);
    ck_assert(!exists("step-00000001") && whole(3) && whole(5));
    ck_assert_int_eq(cstc_directory_keep(path, "other", 1, 5, &err), CST_OK);
    ck_assert(whole(3) && whole(5));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("retention");
    TCase *tc = suite_case(suite, "removing", directory_rig_setup, directory_rig_teardown);

    tcase_add_test(tc, retention);
    tcase_add_test(tc, foreign);
    tcase_add_test(tc, gone_back);
    tcase_add_test(tc, later_format);
    tcase_add_test(tc, unreadable);
    tcase_add_test(tc, linked);
    tcase_add_test(tc, linked_stale);
    tcase_add_test(tc, fifos);
    tcase_add_test(tc, mixed_jobs);
    return suite_run(suite);
}
