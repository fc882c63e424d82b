/* SPDX-License-Identifier: Apache-2.0 */
/* The first message on a connection between two machines: who they are, and whether they can train
 * a job together. Pure computation. */
#ifndef CSTD_HELLO_H
#define CSTD_HELLO_H

#include "cistern/status.h"
#include "daemon/links/kernel_digest.h"
#include "proto/job_name.h"

#include <stddef.h>

#define CSTD_LINK_PROTOCOL 1     /* Version of proto/link.proto that this daemon speaks. */
#define CSTD_HELLO_MAX_BYTES 512 /* Most bytes of a Hello. */
#define CSTD_HELLO_WORD_BYTES                                                                      \
    32 /* Most bytes of a version and of an instruction set, with the NUL. */

/* What a machine says of itself. */
struct cstd_hello {
    uint32_t min_version, max_version; /* Versions of the protocol that it speaks. */
    char name[CST_JOB_NAME_BYTES]; /* Its name; those of machines have the form of jobs' names. */
    uint64_t instance;             /* Random number of this start of its daemon. */
    uint8_t digest[CSTD_KERNEL_DIGEST_BYTES];
    char program[CSTD_HELLO_WORD_BYTES]; /* Version of cistern. */
    char isa[CSTD_HELLO_WORD_BYTES];     /* Instruction set of its kernels. */
};

/* Set what this machine says of itself. Computes the digest of its kernels. */
void cstd_hello_init(struct cstd_hello *mine, const char *name, uint64_t instance);

/* Encode @hello into @out, a buffer of CSTD_HELLO_MAX_BYTES. Returns the length. */
size_t cstd_hello_write(const struct cstd_hello *hello, uint8_t *out);

/* Decode the @n bytes at @body. CST_EPROTO: they are no Hello. */
int cstd_hello_read(struct cstd_hello *out, const uint8_t *body, size_t n, struct cst_err *err);

/* Check whether the machine that says @theirs, and has proved to be the machine @name, can train
 * with this one. CST_EVERSION: there is no version of the protocol that both speak; CST_EMISMATCH:
 * it has another name, or that of this machine, or its kernels compute other bits. */
int cstd_hello_check(const struct cstd_hello *mine, const struct cstd_hello *theirs,
                     const char *name, struct cst_err *err);

#endif
