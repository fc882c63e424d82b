/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager's store of descriptors, which keeps memory while there is no daemon. With
 * systemd it is the service's fd store (FDSTORE=1 of sd_notify, FileDescriptorStoreMax= of the
 * unit). The next process of the service inherits everything in it, as with socket activation.
 *
 * A descriptor is stored under the name of what it belongs to; several can have one name. An
 * inherited descriptor is found by the number of its file, because names do not tell descriptors
 * apart. Without a store (the variable FDSTORE is not set) the descriptors are only listed, for a
 * daemon that takes them over (handover.h). Loop thread only. */
#ifndef CSTD_KEEPER_H
#define CSTD_KEEPER_H

#include "cistern/status.h"
#include "daemon/base/kept_name.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cstd_notify;

/* An inherited descriptor. */
struct cstd_kept {
    struct cstd_kept_name name;
    bool is_long;  /* The store has it under its long name. */
    bool is_alone; /* It is in the service manager's store, and not among the stored ones. */
    int fd;        /* -1: it was taken. */
    ino_t inode;
};

/* A stored descriptor, which belongs to whoever stored it. */
struct cstd_stored {
    struct cstd_kept_name name;
    bool is_long; /* The store has it under its long name. */
    int fd;
};

struct cstd_keeper {
    struct cstd_notify *notify; /* The way to the service manager. */
    uint32_t limit;             /* Descriptors that the store can hold; 0: there is no store. */
    struct cstd_stored *stored; /* All stored descriptors; owned. */
    /* Room for as many descriptors, for whoever stores several under one name; owned. */
    int *fds;
    uint32_t n_stored, capacity; /* Used and allocated length of stored. */
    /* What the store holds: descriptors, and bytes of their names with one more for each. */
    uint32_t n_used;
    size_t name_bytes;
    uint64_t n_changes;     /* Times that descriptors were stored or removed. */
    bool engines_stored;    /* What all jobs need of the engines is in the store. */
    struct cstd_kept *kept; /* Inherited descriptors; owned. */
    uint32_t n_kept;
    bool sorted; /* They are in the order of their inodes. */
};

/* Initialise @keeper with no inherited descriptors. */
void cstd_keeper_init(struct cstd_keeper *keeper, struct cstd_notify *notify);

/* Enter the inherited descriptor @fd, which @keeper owns from now on. CST_EVERSION: a later version
 * has stored it. CST_ENOMEM. After an error it was closed, and stays in the store. */
int cstd_keeper_inherit(struct cstd_keeper *keeper, const char *name, int fd, struct cst_err *err);

/* Close the inherited descriptors that were not taken. They stay in the service manager's store,
 * and still count. */
void cstd_keeper_close(struct cstd_keeper *keeper);

/* Take the inherited descriptor of the file @inode (0: of any file) with @name. It belongs to the
 * caller. -1: there is none. */
int cstd_keeper_take(struct cstd_keeper *keeper, const struct cstd_kept_name *name, uint64_t inode);

/* True if cstd_keeper_take would find one. */
bool cstd_keeper_holds(struct cstd_keeper *keeper, const struct cstd_kept_name *name,
                       uint64_t inode);

/* True if a descriptor is stored under @name. */
bool cstd_keeper_has(const struct cstd_keeper *keeper, const struct cstd_kept_name *name);

/* Check that @n more descriptors with names like @name can be stored. CST_EBUDGET: they cannot, and
 * @err has the numbers and the remedy. */
int cstd_keeper_check(const struct cstd_keeper *keeper, const struct cstd_kept_name *name,
                      uint32_t n, struct cst_err *err);

/* Make room for @n more stored descriptors. CST_ENOMEM. */
int cstd_keeper_reserve(struct cstd_keeper *keeper, uint32_t n, struct cst_err *err);

/* Store the @n descriptors @fds under @name. They stay the caller's, which forgets them before it
 * closes them. @sent: they were inherited, and are in the service manager's store. CST_ENOMEM:
 * never, if they were inherited and there is room. */
int cstd_keeper_store(struct cstd_keeper *keeper, const struct cstd_kept_name *name, const int *fds,
                      uint32_t n, bool sent, struct cst_err *err);

/* Remove the descriptors under @name from the store, stored or only inherited. */
void cstd_keeper_forget(struct cstd_keeper *keeper, const struct cstd_kept_name *name);

#endif
