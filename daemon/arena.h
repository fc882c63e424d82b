/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is shared by descriptor: sealed memfds and the memory of GPUs, and the budgets that
 * they are charged to. The daemon makes the memfds; a GPU's memory its engine makes, and the daemon
 * gets a descriptor for it. It holds them all; engines populate, place and lock them (engines.h).
 * Never maps them, but for the job table.
 *
 * A segment starts with one reference, its owner's; each engine that maps it has another. It is
 * charged to its budget until the last reference goes: only then is the memory back. */
#ifndef CST_ARENA_H
#define CST_ARENA_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct cst_quota_account;

struct cst_remains;

struct cst_budget {
    const char *name;  /* "host memory": for words */
    uint64_t limit;    /* bytes */
    uint64_t used;     /* bytes; above the limit where processes fill dropped files again */
    uint64_t kept;     /* bytes of used: in files that were dropped and that processes still hold */
    unsigned resource; /* number of the resource in users' accounts (quota.h) */
    struct cst_remains *remains; /* where files that were charged to it are dropped; NULL: they are
                                    closed, whoever else has them */
};

/* Charge @bytes for @what to @budget and to @account, the user's (NULL: nobody's). CST_EBUDGET with
 * all numbers, and with the key in [quota] where it is the user's limit; nothing is charged then.
 */
int cst_budget_take(struct cst_budget *budget, struct cst_quota_account *account, uint64_t bytes,
                    const char *what, struct cst_err *err);
void cst_budget_give(struct cst_budget *budget, struct cst_quota_account *account, uint64_t bytes);

/* Charge @bytes that are in use already, beyond all limits if need be. */
void cst_budget_force(struct cst_budget *budget, struct cst_quota_account *account, uint64_t bytes);

#define CST_BUDGET_WORDS 160

/* "60000 of 100000 are in use", of bytes, and how many of them by processes that keep memory of
 * removed jobs. */
void cst_budget_words(const struct cst_budget *budget, char *out, size_t n);

/* Bytes of @budget that nobody uses. */
uint64_t cst_budget_unused(const struct cst_budget *budget);

/* Bytes of @budget that @account (NULL: nobody's) could take now. */
uint64_t cst_budget_left(const struct cst_budget *budget, const struct cst_quota_account *account);

/* What one engine has of one segment (driven by mounts.c):
 *
 *   NONE -> WANTED -> ADDING -> MOUNTED -> DROPPING -> NONE
 *                        |         | the engine dies
 *       unmounted early  |         v
 *   NONE <- UNWANTED <---+      REMOUNT -> REMOUNTING -> MOUNTED
 *
 * WANTED lasts until the engine is up and, in a GPU's engine, until the segment is made. */
enum cst_mount_state {
    CST_MOUNT_NONE,       /* it does not map it and will not */
    CST_MOUNT_WANTED,     /* to be asked for, when the engine is up */
    CST_MOUNT_ADDING,     /* asked for; the owner waits for the answer */
    CST_MOUNT_UNWANTED,   /* asked for; to be dropped when the answer comes */
    CST_MOUNT_MOUNTED,    /* mapped */
    CST_MOUNT_REMOUNT,    /* was mapped in an engine that died */
    CST_MOUNT_REMOUNTING, /* asked for again; nobody but the engine's commands waits */
    CST_MOUNT_DROPPING,   /* to be unmapped; no answer yet */
};

#define CST_ARENA_MAX_ENGINES 32 /* 8 nodes, 8 paced accelerators and 16 GPUs; bits of a word */

/* What populating the segments of one owner has cost, which all of them share: a job that is too
 * large for its control group has engines killed. */
struct cst_population {
    unsigned n_deaths;   /* of engines, while they populated a segment of the owner */
    uint64_t last_death; /* number of the last one of them */
};

#define CST_POPULATION_DEATHS 2 /* so many, and no more segments of the owner are populated */

struct cst_segment;
typedef void (*cst_segment_cb)(struct cst_segment *segment);

struct cst_segment {
    TAILQ_ENTRY(cst_segment) link;   /* in engines' list, while any engine has something of it */
    struct cst_segment *same_bucket; /* private to engines.c */
    bool listed;                     /* private to engines.c */
    uint32_t id;                     /* on the wire; unique in the life of the daemon */
    uint32_t n_refs;                 /* owner, engines */
    int fd; /* memfd, sealed SHRINK|GROW|SEAL, mode 0600; device: the driver's handle, -1: not
               made yet */
    int worker_fd;  /* the same file, opened anew for workers; -1: none has asked for it yet */
    bool device;    /* it is memory of a GPU, that of engine populate */
    bool made;      /* it is there and populated: engines of GPUs may map it */
    uint64_t bytes; /* length */
    struct cst_budget *budget;         /* charged; NULL: none */
    struct cst_quota_account *account; /* charged with it, a reference; NULL: nobody's */
    uint32_t engines;                  /* that map it, a bit each; 0: all of the host's */
    int populate; /* index of the engine that populates it, or makes it; -1: nobody */
    struct cst_population *population;     /* the owner's; NULL: deaths are the engine's own */
    int bind;                              /* NUMA node (OS number) for its pages; -1: anywhere */
    bool lock;                             /* mlock it */
    bool lock_required;                    /* ... and failing is an error */
    bool locked;                           /* it is */
    uint64_t populated;                    /* bytes so far */
    uint64_t counted;                      /* of them, that the owner has seen */
    uint8_t mounts[CST_ARENA_MAX_ENGINES]; /* enum cst_mount_state per engine */
    uint32_t n_waiting;                    /* engines that have not answered yet */
    struct cst_err err;                    /* the first engine's words that could not map it */
    cst_segment_cb on_mounted;             /* all engines have answered; see err. May be NULL */
    cst_segment_cb on_progress;            /* populated grew. May be NULL */
    cst_segment_cb on_gone; /* last reference: called before it is freed. May be NULL */
    void *arg;              /* for the callbacks' owner */
};

/* Make a segment of @bytes, charged to @budget and @account (NULL: to nobody), with one reference.
 * @id is the caller's. CST_EBUDGET; CST_ENOMEM: the kernel gave no memfd (too many open files);
 * CST_EINVAL: zero bytes. */
int cst_segment_open(struct cst_segment **out, uint32_t id, uint64_t bytes,
                     struct cst_budget *budget, struct cst_quota_account *account, const char *what,
                     struct cst_err *err);

/* The same for memory of the GPU of engine @engine, which is to make it. */
int cst_segment_open_device(struct cst_segment **out, uint32_t id, uint64_t bytes,
                            struct cst_budget *budget, struct cst_quota_account *account,
                            unsigned engine, const char *what, struct cst_err *err);

/* The memory of @of, a memfd, by another segment: charged to nobody, populated by nobody. Each
 * lives as long as it is referenced. CST_ENOMEM: too many open files. */
int cst_segment_open_shared(struct cst_segment **out, uint32_t id, const struct cst_segment *of,
                            const char *what, struct cst_err *err);

/* *fd: a descriptor of @segment that workers may be sent; it stays the segment's. A memfd is opened
 * anew for them, so that it can be found out later whether any of them still has it (remains.h).
 * CST_ENOMEM: too many open files. */
int cst_segment_share(struct cst_segment *segment, int *fd, struct cst_err *err);

/* Give all memory of the memfd back that has been populated so far. */
void cst_segment_empty(struct cst_segment *segment);

void cst_segment_ref(struct cst_segment *segment);

/* Give a reference back; the last one drops the memfd (cst_remains_drop), gives the budget back as
 * the memory leaves, calls on_gone and frees it. */
void cst_segment_unref(struct cst_segment *segment);

#endif
