/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory segments (sealed memfds and accelerator memory) and the budgets that they are
 * charged to. The daemon creates the memfds. An accelerator's engine allocates its memory and sends
 * the daemon a descriptor of it. The daemon holds all descriptors, but this module maps no segment:
 * engines populate segments, bind them to NUMA nodes and lock them (engines.h).
 *
 * A segment starts with one reference, which belongs to its owner. Each engine that maps the
 * segment holds another reference. The segment is charged to its budget until the last reference is
 * released, because only then is its memory returned. */
#ifndef CST_ARENA_H
#define CST_ARENA_H

#include "cistern/status.h"
#include "proto/set.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct cstd_quota_account;

struct cstd_remains;

/* A limited amount of memory of one kind, such as host memory or the memory of one GPU. */
struct cstd_budget {
    const char *name; /* The budget's name in messages, such as "host memory". */
    /* The key of the configuration that sets the limit, such as "memory in [host]"; NULL: none. */
    const char *key;
    uint64_t limit; /* Size of the budget in bytes. */
    /* Part of limit, in bytes, that is left to others and never charged (set_aside.h); may be more
     * than limit. set_aside_words says what it is for; NULL: set_aside is always 0. */
    uint64_t set_aside;
    const char *set_aside_words;
    /* Bytes that are charged. More than limit is possible when processes write again to files that
     * the daemon has dropped. */
    uint64_t used;
    /* Part of used, in bytes: files that the daemon has dropped and that processes still hold. */
    uint64_t kept;
    unsigned resource; /* Number of this resource in users' accounts (quota.h). */
    /* Dropped files of this budget are handed over to this object. NULL: dropped files are closed,
     * even if other processes still have them. */
    struct cstd_remains *remains;
};

/* Check like cstd_budget_take, but charge nothing. */
int cstd_budget_check(const struct cstd_budget *budget, const struct cstd_quota_account *account,
                      uint64_t bytes, const char *what, struct cst_err *err);

/* Charge @bytes to @budget and to the user's @account (NULL: to no user). @what names the purpose
 * in messages. CST_EBUDGET: the limit of the budget, of the user or both would be exceeded, and
 * nothing is charged; @err names each limit that is exceeded, with its numbers and its key. */
int cstd_budget_take(struct cstd_budget *budget, struct cstd_quota_account *account, uint64_t bytes,
                     const char *what, struct cst_err *err);
/* Give @bytes of a charge back to @budget and @account. */
void cstd_budget_give(struct cstd_budget *budget, struct cstd_quota_account *account,
                      uint64_t bytes);

/* Charge @bytes that are already in use, even beyond the limits. */
void cstd_budget_force(struct cstd_budget *budget, struct cstd_quota_account *account,
                       uint64_t bytes);

/* What a module has charged for memory that it allocates for a user, of an amount that changes. */
struct cstd_charge {
    struct cstd_budget *budget;
    struct cstd_quota_account *account; /* Borrowed; NULL: no user. */
    uint64_t bytes;                     /* Bytes that are charged now. */
};

/* Change the charge to @bytes. CST_EBUDGET: a limit would be exceeded, and the charge is as before.
 * A smaller charge is always possible. */
int cstd_charge_set(struct cstd_charge *charge, uint64_t bytes, const char *what,
                    struct cst_err *err);

/* Change the charge to @bytes, even beyond the limits. */
void cstd_charge_force(struct cstd_charge *charge, uint64_t bytes);

#define CSTD_BUDGET_WORDS 480

/* Write the use of @budget to @out, such as "58.6 KiB of 97.7 KiB are in use", how much of it is
 * held by processes that keep memory of removed jobs, and what is set aside for what. */
void cstd_budget_words(const struct cstd_budget *budget, char *out, size_t n);

/* Bytes of @budget that can be charged at most: what is not set aside. */
uint64_t cstd_budget_size(const struct cstd_budget *budget);

/* Bytes of @budget that are neither charged nor set aside. */
uint64_t cstd_budget_unused(const struct cstd_budget *budget);

/* Bytes of @budget that @account (NULL: no user) could take now. */
uint64_t cstd_budget_left(const struct cstd_budget *budget,
                          const struct cstd_quota_account *account);

/* State of one segment in one engine (mounts.c makes the transitions):
 *
 *   NONE -> WANTED -> ADDING -> MOUNTED -> DROPPING -> NONE
 *                        |         | the engine dies
 *       unmounted early  |         v
 *   NONE <- UNWANTED <---+      REMOUNT -> REMOUNTING -> MOUNTED
 *
 * A segment stays WANTED until the engine is up. In an accelerator's engine it also stays WANTED
 * until its populating engine has populated or allocated it. */
enum cstd_mount_state {
    CSTD_MOUNT_NONE,   /* The engine does not map the segment and will not map it. */
    CSTD_MOUNT_WANTED, /* The engine will be asked to map the segment when it is up. */
    CSTD_MOUNT_ADDING, /* The engine was asked to map the segment; the owner waits for the answer.
                        */
    /* The engine was asked to map the segment, but must unmap it after the answer. */
    CSTD_MOUNT_UNWANTED,
    CSTD_MOUNT_MOUNTED, /* The engine has mapped the segment. */
    CSTD_MOUNT_REMOUNT, /* The segment was mapped in an engine process that died. */
    /* The engine was asked again after a restart; only its commands wait for the answer. */
    CSTD_MOUNT_REMOUNTING,
    CSTD_MOUNT_DROPPING, /* The engine was asked to unmap the segment and has not answered. */
};

/* Engines of at most 8 NUMA nodes, 8 simulated accelerators, 16 GPUs and 32 drives. */
#define CSTD_ARENA_MAX_ENGINES 64

/* Engine deaths while the segments of one owner were populated; all segments of the owner share it.
 * Populating a job that is too large for its control group gets engines killed. */
struct cstd_population {
    unsigned n_deaths; /* Engine deaths during which a segment of the owner was being populated. */
    uint64_t last_death; /* Number of the last such death, in the count of all engines' deaths. */
};

/* After this many deaths no segment of the owner is populated any more. */
#define CSTD_POPULATION_DEATHS 2

struct cstd_segment;
typedef void (*cstd_segment_cb)(struct cstd_segment *segment);

/* A piece of shared memory that engines and workers can map. */
struct cstd_segment {
    TAILQ_ENTRY(cstd_segment) link; /* In the list of struct cstd_engines, while listed. */
    /* Next segment in the same hash bucket; private to engines.c. */
    struct cstd_segment *same_bucket;
    /* The segment is in the list and hash table of struct cstd_engines; private to engines.c. */
    bool listed;
    uint32_t id;     /* Number of the segment in messages; unique during the life of the daemon. */
    uint32_t n_refs; /* References held by the owner and by engines. */
    /* Descriptor of the memory. Host memory: a memfd with the seals SHRINK, GROW and SEAL and mode
     * 0600. Accelerator memory: the descriptor from its engine (for a GPU the
     * driver's handle), or -1 before the engine has allocated it. Of a drive: the user's file. */
    int fd;
    /* Descriptor of the file for workers, opened separately from fd. -1: no worker has asked for it
     * yet. */
    int worker_fd;
    /* Open files that the account is charged for: fd, and worker_fd for a segment of workers. */
    unsigned n_files;
    /* The segment is accelerator memory, allocated by the engine whose index is in populate. */
    bool device;
    /* Of a drive: the segment is the part of a user's file that begins at file_offset, bytes. The
     * engine writes zeros to a new one. */
    bool file;
    uint64_t file_offset;
    /* The memory is that of another machine, in a segment that it calls remote_id: the engine of a
     * network copies from there. */
    bool remote;
    uint32_t remote_machine, remote_id;
    bool served; /* Other machines may read the segment, by the engine of a network. */
    /* The contents must outlive the segment: the file is closed with it, and nothing is returned to
     * the system. */
    bool kept;
    /* An earlier daemon made the memory. */
    bool adopted;
    /* The segment exists and is populated, so that other accelerators' engines may map it. */
    bool made;
    uint64_t bytes;             /* Length in bytes. */
    struct cstd_budget *budget; /* The budget that is charged; NULL: none. */
    uint64_t charged;           /* Bytes that are charged to the budget and the account. */
    /* The user's account that is charged, and a reference to it; NULL: no user. */
    struct cstd_quota_account *account;
    struct cst_set engines; /* Engines that map the segment; empty: all engines of NUMA nodes. */
    int populate; /* Index of the engine that populates or allocates the segment; -1: none. */
    /* Deaths counted for the owner; NULL: deaths count against the engine. */
    struct cstd_population *population;
    int bind;           /* NUMA node (OS number) for the pages; -1: any node. */
    bool lock;          /* Lock the pages in memory (mlock). */
    bool lock_required; /* A failure to lock the pages fails the segment. */
    bool locked;        /* The pages are locked. */
    /* Pages are missing, and the daemon adds and removes them (page_work.h): engines must not
     * populate the segment or lock it as a whole. */
    bool sparse;
    uint64_t populated; /* Bytes populated so far. */
    uint64_t counted; /* Part of populated, in bytes, that the owner has added to its own count. */
    uint8_t mounts[CSTD_ARENA_MAX_ENGINES]; /* State in each engine, an enum cstd_mount_state. */
    uint32_t n_waiting; /* Number of engines that have not answered the request to map. */
    /* Words of the first engine that could not map the segment; status 0: none failed. */
    struct cst_err err;
    /* Called when all engines have answered; err has the outcome. May be NULL. */
    cstd_segment_cb on_mounted;
    cstd_segment_cb on_progress; /* Called when populated has changed. May be NULL. */
    /* Called after the last reference is released and before the segment is freed. May be NULL. */
    cstd_segment_cb on_gone;
    void *arg; /* For the owner of the callbacks. */
    /* For on_gone of a segment whose memory was charged for a job (upkeep.h); else NULL. */
    void *loan;
};

/* Create a memfd segment of @bytes with one reference, charged to @budget and @account (NULL: not
 * charged). The account is also charged for two open files, one of which is for workers. The caller
 * chooses @id, and @what names the purpose in messages. CST_EBUDGET: a limit is exceeded;
 * CST_ENOMEM: out of memory, or the kernel gave no memfd (too many open files); CST_EINVAL: a size
 * of 0 bytes or too large. */
int cstd_segment_open(struct cstd_segment **out, uint32_t id, uint64_t bytes,
                      struct cstd_budget *budget, struct cstd_quota_account *account,
                      const char *what, struct cst_err *err);

/* Create a segment of the memfd @fd of @bytes, which an earlier daemon made, populated and named
 * @id. The segment owns @fd, on failure too, and is `kept`. It is charged even beyond the limits.
 * CST_ENOMEM: out of memory; CST_ELOST: the file has another size or lacks a seal. */
int cstd_segment_adopt(struct cstd_segment **out, uint32_t id, uint64_t bytes, int fd,
                       struct cstd_budget *budget, struct cstd_quota_account *account,
                       struct cst_err *err);

/* Create a segment of accelerator memory, with the parameters of cstd_segment_open. The engine with
 * index @engine allocates the memory when the segment is mounted. */
int cstd_segment_open_device(struct cstd_segment **out, uint32_t id, uint64_t bytes,
                             struct cstd_budget *budget, struct cstd_quota_account *account,
                             unsigned engine, const char *what, struct cst_err *err);

/* Create a segment of @bytes of the file @fd, on the drive of the engine with index @engine. The
 * caller sets file_offset. @fd stays the caller's. Everything else is as for cstd_segment_open. */
int cstd_segment_open_file(struct cstd_segment **out, uint32_t id, uint64_t bytes, int fd,
                           struct cstd_budget *budget, struct cstd_quota_account *account,
                           unsigned engine, const char *what, struct cst_err *err);

/* Create a segment for @bytes of the memory of @machine, in its segment @remote_id, from which the
 * engine of a network with index @engine copies. It has no memory here, and costs no budget.
 * CST_ENOMEM. */
int cstd_segment_open_remote(struct cstd_segment **out, uint32_t id, uint64_t bytes,
                             uint32_t machine, uint32_t remote_id, unsigned engine,
                             struct cst_err *err);

/* Create a segment of the accelerator memory @fd, which an earlier daemon's engine of the same
 * accelerator allocated; the engine with index @engine imports it. Everything else is as for
 * cstd_segment_adopt. */
int cstd_segment_adopt_device(struct cstd_segment **out, uint32_t id, uint64_t bytes, int fd,
                              struct cstd_budget *budget, struct cstd_quota_account *account,
                              unsigned engine, struct cst_err *err);

/* Create a segment that shares the memfd of @of. It is charged to no budget and populated by no
 * engine. The memory lives until both segments are gone. CST_ENOMEM: too many open files, or out of
 * memory. */
int cstd_segment_open_shared(struct cstd_segment **out, uint32_t id, const struct cstd_segment *of,
                             const char *what, struct cst_err *err);

/* Create a segment that shares the memfd of @of, whose place it may take later. It is used by the
 * engine that populates @of and by those in @engines. Errors are those of
 * cstd_segment_open_shared. */
int cstd_segment_open_heir(struct cstd_segment **out, uint32_t id, const struct cstd_segment *of,
                           struct cst_set engines, const char *what, struct cst_err *err);

/* @heir takes over the memory of @of and its charge: the memory ends with @heir from now on. */
void cstd_segment_inherit(struct cstd_segment *heir, struct cstd_segment *of);

/* No worker gets a descriptor of @segment, or only some workers do: give back the charge for the
 * file of workers. */
void cstd_segment_keep_private(struct cstd_segment *segment);

/* Set *fd to a descriptor of @segment that can be sent to workers. It belongs to the segment. A
 * memfd is opened separately for workers, which lets the daemon find out later whether any worker
 * still has it (remains.h). CST_EBUDGET: the user's limit of open files is exceeded; CST_ENOMEM:
 * too many open files. */
int cstd_segment_share(struct cstd_segment *segment, int *fd, struct cst_err *err);

/* Open @segment, a memfd, for reading only: a process that gets the descriptor can neither write to
 * the memory nor map it for writing. The caller closes *fd. CST_EUNSUPPORTED: the memory is a
 * device's; CST_ENOMEM: too many open files. */
int cstd_segment_open_reading(const struct cstd_segment *segment, int *fd, struct cst_err *err);

/* Returns whether the file is dropped with the segment, so that its contents are not needed after
 * the engines have unmapped it. False for a segment that shares the file of another one. */
static inline bool cstd_segment_is_ours(const struct cstd_segment *segment)
{
    return !segment->kept && segment->budget != NULL && segment->budget->remains != NULL;
}

/* Return all memory of the memfd that has been populated so far to the system. */
void cstd_segment_empty(struct cstd_segment *segment);

/* Take one more reference. */
static inline void cstd_segment_ref(struct cstd_segment *segment)
{
    segment->n_refs++;
}

/* Release one reference. The last one closes the memory or hands a memfd over to cstd_remains_drop,
 * gives the charge back, calls on_gone and frees the segment. The charge of a memfd that processes
 * still hold is given back later, as its memory is freed. */
void cstd_segment_unref(struct cstd_segment *segment);

#endif
