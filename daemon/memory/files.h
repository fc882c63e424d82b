/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a job, in which its states lie on drives. The user's client has opened them with its
 * own rights. They are never mapped: a file that is cut off is an error of its job alone. Loop
 * thread only. */
#ifndef CSTD_FILES_H
#define CSTD_FILES_H

#include "offload/layout/layout.h"

struct cstd_daemon;
struct cstd_job;
struct cstd_quota_account;
struct cstd_tier;

/* A file for states. */
struct cstd_file {
    int fd; /* Owned; locked against use by another job. -1: an earlier daemon's. */
    const struct cstd_tier *tier; /* The drive. Its engine is in use. */
    uint64_t taken;               /* Bytes from the beginning that segments of the job have. */
};

/* All 0: there are none. */
struct cstd_files {
    struct cstd_file v[CST_LAYOUT_MAX_DEVICES];
    uint32_t n;
    struct cstd_quota_account *account; /* Charged for open files; borrowed. */
};

/* True if a peer may send descriptors of files now. False: too many descriptors of earlier ones are
 * still being closed. */
bool cstd_files_may_come(void);

/* Close @fd, which a peer has chosen, in a thread: it can take as long as the peer likes. */
void cstd_files_close_apart(int fd);

/* Write the path of @fd as the kernel knows it, such as "/scratch/#523 (deleted)", to @out. Returns
 * @out. Any thread. */
const char *cstd_files_path(int fd, char out[160]);

/* Write the path of the file @fd, whole, to @out. True: the file has no name, or has none any more,
 * and the path says in which directory it is; also if the name cannot be found out (@out is
 * empty). */
bool cstd_files_name(int fd, char out[], size_t size);

/* Take the @n files @fds in place of those in @files, which no segment uses. The descriptors are
 * owned by @files on success, and stay the caller's otherwise. CST_EINVAL: one is not a file of its
 * own drive that can be read and written with O_DIRECT, or there are too many; CST_EBUSY: another
 * job uses it; CST_EBUDGET, CST_EUNSUPPORTED, CST_EIO. @err names the file. */
int cstd_files_take(struct cstd_files *files, struct cstd_daemon *daemon,
                    struct cstd_quota_account *account, const int *fds, unsigned n,
                    struct cst_err *err);

/* Add the file on the drive of @tier that the job of an earlier daemon has: the descriptors are
 * those of the segments that were kept. @account is charged even beyond its limit. */
void cstd_files_adopt(struct cstd_files *files, struct cstd_quota_account *account,
                      const struct cstd_tier *tier);

/* Close all files. Also allowed for all 0. */
void cstd_files_close(struct cstd_files *files);

/* True if @files are one on each of the @n drives whose numbers are in @numbers, such as "259:1",
 * in any order. */
bool cstd_files_are_on(const struct cstd_files *files, char *const *numbers, size_t n);

#define CSTD_FILES_WORDS 200 /* Bytes for the names of drives; more are cut. */

/* Write where states are that are in @files, or in files on the @n drives @numbers, to @out: "in
 * memory", "on nvme0n1 and nvme1n1". Returns @out. */
const char *cstd_files_words(const struct cstd_files *files, char out[CSTD_FILES_WORDS]);
const char *cstd_files_words_of(char *const *numbers, size_t n, char out[CSTD_FILES_WORDS]);

/* The file on the drive of @tier; NULL: there is none, or @files is NULL. */
struct cstd_file *cstd_files_on(struct cstd_files *files, const struct cstd_tier *tier);

/* Start the engines of the drives again that were given up. */
void cstd_files_need(const struct cstd_files *files);

/* CST_EAGAIN: an engine of a drive is not up yet; CST_EENGINE: one was given up. */
int cstd_files_await(const struct cstd_files *files, struct cst_err *err);

#endif
