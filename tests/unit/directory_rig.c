/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/directory_rig.h"

#include "cistern/checkpoint.h"
#include "client/checkpoint/manifest.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534 };

char path[] = "/tmp/cistern-directory.XXXXXX";

void directory_rig_setup(void)
{
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(path));
}

void directory_rig_teardown(void)
{
    char command[96];

    (void)snprintf(command, sizeof command, "chmod -R u+w %s && rm -rf %s", path, path);
    ck_assert_int_eq(system(command), 0);
}

void touch(const char *name)
{
    char full[192];

    (void)snprintf(full, sizeof full, "%s/%s", path, name);
    ck_assert_int_eq(close(open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)), 0);
}

bool exists(const char *name)
{
    char full[192];
    struct stat st;

    (void)snprintf(full, sizeof full, "%s/%s", path, name);
    return lstat(full, &st) == 0;
}

void fill(const struct cstc_directory *directory)
{
    Cistern__JobDescription job = CISTERN__JOB_DESCRIPTION__INIT;
    struct cstc_manifest_file file = {.name = "model.safetensors"};
    struct cstc_manifest manifest = {.description = &job, .files = &file, .n_files = 1};
    struct cstc_file_writer *writer;
    struct cst_err err;
    uint64_t bytes;

    job.name = (char *)(uintptr_t)directory->job;
    ck_assert_int_eq(cstc_file_writer_open(&writer, directory->fd, file.name, &err), CST_OK);
    ck_assert_int_eq(cstc_file_writer_append(writer, "weights", 7, &err), CST_OK);
    ck_assert_int_eq(cstc_file_writer_finish(writer, &file.bytes, &file.hash, &err), CST_OK);
    ck_assert_int_eq(cstc_manifest_write(&manifest, directory->fd, &bytes, &err), CST_OK);
}

void save(uint64_t step)
{
    struct cstc_directory directory;
    struct cst_err err;
    int rc = cstc_directory_begin(&directory, path, "job", step, &err);

    ck_assert_msg(rc == CST_OK, "%s", err.text);
    fill(&directory);
    rc = cstc_directory_commit(&directory, &err);
    ck_assert_msg(rc == CST_OK, "%s", err.text);
}

bool whole(uint64_t step)
{
    struct cst_checkpoint *all = NULL;
    struct cst_err err;
    bool found = false;
    uint32_t n = 0;

    ck_assert_int_eq(cst_checkpoints(path, true, &all, &n, &err), CST_OK);
    for (uint32_t i = 0; i < n; i++) {
        found = found || (all[i].step == step && all[i].whole);
    }
    free(all);
    return found;
}

unsigned count_names(void)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    unsigned n = 0;

    while ((entry = readdir(dir)) != NULL) {
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    (void)closedir(dir);
    return n;
}

void drop_rights(void)
{
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, NOBODY, NOBODY), 0);
        ck_assert_int_eq(setegid(NOBODY), 0);
        ck_assert_int_eq(seteuid(NOBODY), 0);
    }
}

void regain_rights(void)
{
    if (getuid() == 0) {
        ck_assert_int_eq(seteuid(0), 0);
        ck_assert_int_eq(setegid(0), 0);
    }
}
