/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/budget/arena.h"

#include "daemon/budget/quota.h"
#include "daemon/budget/remains.h"
#include "proto/reason.h"
#include "proto/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

void cstd_budget_words(const struct cstd_budget *budget, char *out, size_t n)
{
    char kept[96] = "", used[CST_SIZE_TEXT], size[CST_SIZE_TEXT], aside[CST_SIZE_TEXT];
    bool names_aside = budget->set_aside > 0 && budget->set_aside_words != NULL;

    if (budget->kept > 0) {
        (void)snprintf(kept, sizeof kept, " (%s by processes that keep memory of removed jobs)",
                       cst_size_text(budget->kept, used));
    }
    (void)snprintf(out, n, "%s of %s are in use%s%s%s%s%s", cst_size_text(budget->used, used),
                   cst_size_text(cstd_budget_size(budget), size), kept, names_aside ? ", and " : "",
                   names_aside ? cst_size_text(budget->set_aside, aside) : "",
                   names_aside ? " are set aside " : "",
                   names_aside ? budget->set_aside_words : "");
}

static int check_now(const struct cstd_budget *budget, const struct cstd_quota_account *account,
                     uint64_t bytes, const char *what, struct cst_err *err)
{
    uint64_t left = cstd_budget_unused(budget);
    char use[CSTD_BUDGET_WORDS], wants[CST_SIZE_EXACT], lacks[CST_SIZE_EXACT];
    struct cst_err user = {0};
    int rc = cstd_quota_check(account, budget->resource, bytes, what, &user);

    if (bytes > left) {
        cstd_budget_words(budget, use, sizeof use);
        rc = cst_err_set(err, CST_EBUDGET, "%s: %s wants %s, %s: %s short%s%s%s%s%s", budget->name,
                         what, cst_size_exact(bytes, wants), use,
                         cst_size_exact(bytes - left, lacks), budget->key != NULL ? " (" : "",
                         budget->key != NULL ? budget->key : "", budget->key != NULL ? ")" : "",
                         rc != CST_OK ? "; " : "", user.text);
        (void)cst_err_give_reason(err, cstd_quota_kinds[cstd_quota_key_of(budget->resource)].reason,
                                  rc);
    } else if (rc != CST_OK) {
        *err = user;
    }
    return rc;
}

int cstd_budget_check(const struct cstd_budget *budget, const struct cstd_quota_account *account,
                      uint64_t bytes, const char *what, struct cst_err *err)
{
    int rc = check_now(budget, account, bytes, what, err);

    /* Processes may have given memory up that is still charged. */
    return rc != CST_OK && budget->remains != NULL && cstd_remains_look_again(budget->remains)
               ? check_now(budget, account, bytes, what, err)
               : rc;
}

int cstd_budget_take(struct cstd_budget *budget, struct cstd_quota_account *account, uint64_t bytes,
                     const char *what, struct cst_err *err)
{
    int rc = cstd_budget_check(budget, account, bytes, what, err);

    if (rc == CST_OK) {
        cstd_budget_force(budget, account, bytes);
    }
    return rc;
}

void cstd_budget_give(struct cstd_budget *budget, struct cstd_quota_account *account,
                      uint64_t bytes)
{
    budget->used -= bytes < budget->used ? bytes : budget->used;
    cstd_quota_give(account, budget->resource, bytes);
}

void cstd_budget_force(struct cstd_budget *budget, struct cstd_quota_account *account,
                       uint64_t bytes)
{
    budget->used += bytes;
    cstd_quota_force(account, budget->resource, bytes);
}

int cstd_charge_set(struct cstd_charge *charge, uint64_t bytes, const char *what,
                    struct cst_err *err)
{
    int rc = bytes > charge->bytes ? cstd_budget_check(charge->budget, charge->account,
                                                       bytes - charge->bytes, what, err)
                                   : CST_OK;

    if (rc == CST_OK) {
        cstd_charge_force(charge, bytes);
    }
    return rc;
}

void cstd_charge_force(struct cstd_charge *charge, uint64_t bytes)
{
    if (bytes > charge->bytes) {
        cstd_budget_force(charge->budget, charge->account, bytes - charge->bytes);
    } else if (bytes < charge->bytes) {
        cstd_budget_give(charge->budget, charge->account, charge->bytes - bytes);
    }
    charge->bytes = bytes;
}

uint64_t cstd_budget_size(const struct cstd_budget *budget)
{
    return budget->set_aside < budget->limit ? budget->limit - budget->set_aside : 0;
}

uint64_t cstd_budget_unused(const struct cstd_budget *budget)
{
    uint64_t size = cstd_budget_size(budget);

    /* cstd_budget_force may have charged more than there is. */
    return budget->used < size ? size - budget->used : 0;
}

uint64_t cstd_budget_left(const struct cstd_budget *budget,
                          const struct cstd_quota_account *account)
{
    uint64_t left = cstd_budget_unused(budget),
             allowed = cstd_quota_left(account, budget->resource);

    return left < allowed ? left : allowed;
}

/* Create a memfd whose name, such as "cistern-12", appears in /proc/PID/maps. */
static int make_memfd(uint32_t id)
{
    char name[32];
    int fd;

    (void)snprintf(name, sizeof name, "cistern-%u", id);
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) { /* MFD_NOEXEC_SEAL needs Linux 6.3. */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    return fd;
}

/* Create a sealed memfd of @bytes. F_SEAL_FUTURE_WRITE must not be set, because engines that
 * start later must be able to map the file for writing. F_SEAL_SEAL prevents workers from adding
 * seals. */
static int make_sealed(uint32_t id, uint64_t bytes, int *out, struct cst_err *err)
{
    int fd = make_memfd(id), saved;

    if (fd < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "memfd_create");
    }
    if (ftruncate(fd, (off_t)bytes) != 0 || fchmod(fd, 0600) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        saved = errno;
        (void)close(fd);
        return cst_err_errno(err, CST_ENOMEM, saved, "memfd of %llu bytes",
                             (unsigned long long)bytes);
    }
    *out = fd;
    return CST_OK;
}

/* Charge @bytes and @n_files open files. */
static int charge(uint64_t bytes, unsigned n_files, struct cstd_budget *budget,
                  struct cstd_quota_account *account, const char *what, struct cst_err *err)
{
    int rc;

    if (bytes == 0 || bytes > INT64_MAX) {
        return cst_err_set(err, CST_EINVAL, "%s: a segment of %llu bytes", what,
                           (unsigned long long)bytes);
    }
    rc = cstd_quota_take(account, CSTD_QUOTA_FILES, n_files, what, err);
    if (rc == CST_OK && budget != NULL) {
        rc = cstd_budget_take(budget, account, bytes, what, err);
        if (rc != CST_OK) {
            cstd_quota_give(account, CSTD_QUOTA_FILES, n_files);
        }
    }
    return rc;
}

int cstd_segment_open_device(struct cstd_segment **out, uint32_t id, uint64_t bytes,
                             struct cstd_budget *budget, struct cstd_quota_account *account,
                             unsigned engine, const char *what, struct cst_err *err)
{
    struct cstd_segment *segment = calloc(1, sizeof *segment);
    int rc;

    if (segment == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory for a segment", what);
    }
    rc = charge(bytes, 2, budget, account, what, err);
    if (rc != CST_OK) {
        free(segment);
        return rc;
    }
    *segment = (struct cstd_segment){.id = id,
                                     .bytes = bytes,
                                     .n_files = 2,
                                     .charged = budget != NULL ? bytes : 0,
                                     .budget = budget,
                                     .account = cstd_quota_ref(account),
                                     .n_refs = 1,
                                     .worker_fd = -1,
                                     .fd = -1,
                                     .device = true,
                                     .engines = cst_set_of(engine),
                                     .populate = (int)engine,
                                     .bind = -1};
    *out = segment;
    return CST_OK;
}

int cstd_segment_open_remote(struct cstd_segment **out, uint32_t id, uint64_t bytes,
                             uint32_t machine, uint32_t remote_id, unsigned engine,
                             struct cst_err *err)
{
    struct cstd_segment *segment = calloc(1, sizeof *segment);

    if (segment == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a segment of another machine");
    }
    *segment = (struct cstd_segment){.id = id,
                                     .bytes = bytes,
                                     .n_refs = 1,
                                     .worker_fd = -1,
                                     .fd = -1,
                                     .remote = true,
                                     .remote_machine = machine,
                                     .remote_id = remote_id,
                                     .made = true,
                                     .engines = cst_set_of(engine),
                                     .populate = -1,
                                     .bind = -1};
    *out = segment;
    return CST_OK;
}

int cstd_segment_open_file(struct cstd_segment **out, uint32_t id, uint64_t bytes, int fd,
                           struct cstd_budget *budget, struct cstd_quota_account *account,
                           unsigned engine, const char *what, struct cst_err *err)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0), rc;

    if (own < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "%s: a file for states", what);
    }
    rc = cstd_segment_open_device(out, id, bytes, budget, account, engine, what, err);
    if (rc != CST_OK) {
        (void)close(own);
        return rc;
    }
    (*out)->fd = own;
    cstd_segment_keep_private(*out);
    return CST_OK;
}

int cstd_segment_open(struct cstd_segment **out, uint32_t id, uint64_t bytes,
                      struct cstd_budget *budget, struct cstd_quota_account *account,
                      const char *what, struct cst_err *err)
{
    struct cstd_segment *segment = calloc(1, sizeof *segment);
    int fd = -1, rc;

    if (segment == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory for a segment", what);
    }
    rc = charge(bytes, 2, budget, account, what, err);
    if (rc != CST_OK) {
        goto err_after_alloc;
    }
    rc = make_sealed(id, bytes, &fd, err);
    if (rc != CST_OK) {
        goto err_after_budget;
    }
    *segment = (struct cstd_segment){.id = id,
                                     .bytes = bytes,
                                     .n_files = 2,
                                     .charged = budget != NULL ? bytes : 0,
                                     .budget = budget,
                                     .account = cstd_quota_ref(account),
                                     .n_refs = 1,
                                     .worker_fd = -1,
                                     .fd = fd,
                                     .populate = -1,
                                     .bind = -1};
    *out = segment;
    return CST_OK;

err_after_budget:
    cstd_quota_give(account, CSTD_QUOTA_FILES, 2);
    if (budget != NULL) {
        cstd_budget_give(budget, account, bytes);
    }
err_after_alloc:
    free(segment);
    return rc;
}

/* Make the segment of cstd_segment_adopt and cstd_segment_adopt_device. */
static int adopt(struct cstd_segment **out, uint32_t id, uint64_t bytes, int fd,
                 struct cstd_budget *budget, struct cstd_quota_account *account,
                 struct cst_err *err)
{
    struct cstd_segment *segment = calloc(1, sizeof *segment);

    if (segment == NULL) {
        (void)close(fd);
        return cst_err_set(err, CST_ENOMEM, "no memory for a segment");
    }
    if (budget != NULL) {
        cstd_budget_force(budget, account, bytes);
    }
    cstd_quota_force(account, CSTD_QUOTA_FILES, 1);
    *segment = (struct cstd_segment){.id = id,
                                     .bytes = bytes,
                                     .n_files = 1,
                                     .charged = budget != NULL ? bytes : 0,
                                     .budget = budget,
                                     .account = cstd_quota_ref(account),
                                     .n_refs = 1,
                                     .worker_fd = -1,
                                     .fd = fd,
                                     .kept = true,
                                     .adopted = true,
                                     .made = true,
                                     .populate = -1,
                                     .bind = -1,
                                     .populated = bytes,
                                     .counted = bytes};
    *out = segment;
    return CST_OK;
}

int cstd_segment_adopt(struct cstd_segment **out, uint32_t id, uint64_t bytes, int fd,
                       struct cstd_budget *budget, struct cstd_quota_account *account,
                       struct cst_err *err)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != bytes || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0) {
        (void)close(fd);
        return cst_err_set(err, CST_ELOST, "segment %u is no sealed file of %llu bytes", id,
                           (unsigned long long)bytes);
    }
    return adopt(out, id, bytes, fd, budget, account, err);
}

int cstd_segment_adopt_device(struct cstd_segment **out, uint32_t id, uint64_t bytes, int fd,
                              struct cstd_budget *budget, struct cstd_quota_account *account,
                              unsigned engine, struct cst_err *err)
{
    int rc = adopt(out, id, bytes, fd, budget, account, err);

    if (rc == CST_OK) {
        (*out)->device = true;
        (*out)->engines = cst_set_of(engine);
        (*out)->populate = (int)engine;
    }
    return rc;
}

int cstd_segment_open_shared(struct cstd_segment **out, uint32_t id, const struct cstd_segment *of,
                             const char *what, struct cst_err *err)
{
    struct cstd_segment *segment = calloc(1, sizeof *segment);
    int fd, saved, rc;

    if (segment == NULL) {
        return cst_err_set(err, CST_ENOMEM, "%s: no memory for a segment", what);
    }
    rc = charge(of->bytes, 1, NULL, of->account, what, err);
    if (rc != CST_OK) {
        free(segment);
        return rc;
    }
    /* The base job closes its own descriptor when it ends. */
    fd = fcntl(of->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        saved = errno;
        cstd_quota_give(of->account, CSTD_QUOTA_FILES, 1);
        free(segment);
        return cst_err_errno(err, CST_ENOMEM, saved, "%s: a segment of its base", what);
    }
    *segment = (struct cstd_segment){.id = id,
                                     .bytes = of->bytes,
                                     .n_files = 1,
                                     .account = cstd_quota_ref(of->account),
                                     .n_refs = 1,
                                     .worker_fd = -1,
                                     .fd = fd,
                                     .made = true,
                                     .populate = -1,
                                     .bind = -1,
                                     .locked = of->locked,
                                     .populated = of->bytes,
                                     .counted = of->bytes};
    *out = segment;
    return CST_OK;
}

int cstd_segment_open_heir(struct cstd_segment **out, uint32_t id, const struct cstd_segment *of,
                           struct cst_set engines, const char *what, struct cst_err *err)
{
    int rc = cstd_segment_open_shared(out, id, of, what, err);

    if (rc == CST_OK) {
        /* The engine finds all pages populated, and locks them in its new mapping. */
        (*out)->populate = of->populate;
        cst_set_add(&engines, (uint32_t)of->populate);
        (*out)->engines = engines;
        (*out)->bind = of->bind;
        (*out)->lock = of->lock;
        (*out)->populated = (*out)->counted = 0;
    }
    return rc;
}

void cstd_segment_inherit(struct cstd_segment *heir, struct cstd_segment *of)
{
    heir->budget = of->budget;
    heir->charged = of->charged;
    heir->lock_required = of->lock_required;
    heir->worker_fd = of->worker_fd;
    heir->n_files += of->n_files - 1; /* The account is the same. */
    of->n_files = 1;
    of->budget = NULL; /* @of no longer gives the charge back, nor frees the memory. */
    of->worker_fd = -1;
}

/* True for a memfd of the daemon or of an engine, false for a driver's handle of GPU memory,
 * whatever kind of file the handle is. Only memfds support seals. */
static bool is_memfd(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_GROW) != 0;
}

void cstd_segment_keep_private(struct cstd_segment *segment)
{
    if (segment->n_files == 2 && segment->worker_fd < 0) {
        segment->n_files = 1;
        cstd_quota_give(segment->account, CSTD_QUOTA_FILES, 1);
    }
}

int cstd_segment_share(struct cstd_segment *segment, int *fd, struct cst_err *err)
{
    char path[40];

    if (segment->worker_fd < 0 && is_memfd(segment->fd)) {
        if (segment->n_files < 2 && cstd_quota_take(segment->account, CSTD_QUOTA_FILES, 1,
                                                    "a file of a worker", err) != CST_OK) {
            return err->status;
        }
        segment->n_files = 2;
        /* Opening the file creates a new file description. A duplicate would belong to the daemon's
         * description, and a lease could not tell workers' descriptors from the daemon's
         * (remains.h). */
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
        segment->worker_fd = open(path, O_RDWR | O_CLOEXEC);
        if (segment->worker_fd < 0) {
            return cst_err_errno(err, CST_ENOMEM, errno, "opening a segment for a worker: %s",
                                 path);
        }
    }
    *fd = segment->worker_fd >= 0 ? segment->worker_fd : segment->fd;
    return CST_OK;
}

int cstd_segment_open_reading(const struct cstd_segment *segment, int *fd, struct cst_err *err)
{
    char path[40];

    if (!is_memfd(segment->fd)) {
        return cst_err_set(err, CST_EUNSUPPORTED, "segment %u is no memory of the host",
                           segment->id);
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    return *fd >= 0
               ? CST_OK
               : cst_err_errno(err, CST_ENOMEM, errno, "opening a segment for a reader: %s", path);
}

void cstd_segment_empty(struct cstd_segment *segment)
{
    cstd_remains_punch(segment->fd, segment->bytes);
}

/* Close the files and give the charge back. A memfd that workers may still hold is handed over to
 * the budget's remains instead, together with its charge. */
static void drop_memory(struct cstd_segment *segment)
{
    struct cstd_budget *budget = segment->budget;

    if (segment->worker_fd >= 0) {
        (void)close(segment->worker_fd);
    }
    cstd_quota_give(segment->account, CSTD_QUOTA_FILES, segment->n_files);
    if (cstd_segment_is_ours(segment) && segment->fd >= 0 && is_memfd(segment->fd)) {
        cstd_remains_drop(budget->remains, segment->fd, segment->bytes, segment->charged, budget,
                          segment->account);
        return;
    }
    if (segment->fd >= 0) {
        (void)close(segment->fd);
    }
    if (budget != NULL) {
        cstd_budget_give(budget, segment->account, segment->charged);
    }
}

void cstd_segment_unref(struct cstd_segment *segment)
{
    if (--segment->n_refs > 0) {
        return;
    }
    drop_memory(segment);
    cstd_quota_unref(segment->account);
    if (segment->on_gone != NULL) {
        segment->on_gone(segment);
    }
    free(segment);
}
