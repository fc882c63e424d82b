/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of errors. The numbers are the wire's: never reuse one, append only.
 *
 * A function returns 0 (CST_OK) or a negative status. Where the cause needs words, its last
 * parameter is a `struct cst_err *err`: the first function that knows the cause writes it, with its
 * numbers; callers may prefix it ("outer: inner"). Only daemon/ and programs print. */
#ifndef CST_STATUS_H
#define CST_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, number, retryable, words) */
#define CST_STATUS_MAP(X)                                                                          \
    X(OK, 0, false, "ok")                                                                          \
    X(EAGAIN, 1, true, "not yet: the request is queued or the resource is busy")                   \
    X(EINVAL, 2, false, "invalid request")                                                         \
    X(EPROTO, 3, false, "broken frame or message")                                                 \
    X(EVERSION, 4, false, "no common protocol version")                                            \
    X(EUNSUPPORTED, 5, false, "not supported by this peer")                                        \
    X(EDENIED, 6, false, "permission denied")                                                      \
    X(ENOTFOUND, 7, false, "no such object")                                                       \
    X(EEXIST, 8, false, "it exists already")                                                       \
    X(EBUSY, 9, true, "held by somebody else")                                                     \
    X(EMISMATCH, 10, false, "ranks disagree")                                                      \
    X(ENOMEM, 11, true, "out of memory")                                                           \
    X(EBUDGET, 12, true, "over a memory budget")                                                   \
    X(EPOOL, 13, false, "pool too small")                                                          \
    X(ENOCREDIT, 14, true, "too many requests in flight")                                          \
    X(EPEERDIED, 15, true, "a peer died: sync and do the step again")                              \
    X(ECANCELLED, 16, true, "cancelled")                                                           \
    X(ETIMEDOUT, 17, true, "deadline passed")                                                      \
    X(ESTALE, 18, true, "the lease or the attempt is over")                                        \
    X(ELOST, 19, false, "data lost")                                                               \
    X(EENGINE, 20, true, "the engine failed")                                                      \
    X(EDRAINING, 21, true, "the daemon is going down")                                             \
    X(ECONN, 22, true, "no connection to the daemon")                                              \
    X(EFORKED, 23, false, "this handle belongs to the parent process")                             \
    X(EIO, 24, true, "input/output error")                                                         \
    X(EINTERNAL, 25, false, "internal error")                                                      \
    X(EGPU, 26, true, "the GPU failed")

enum cst_status {
#define CST_STATUS_X(name, number, retryable, words) CST_##name = -(number),
    CST_STATUS_MAP(CST_STATUS_X)
#undef CST_STATUS_X
};

/* The words of a cause. Plain storage: no ownership, copy freely. */
struct cst_err {
    int status;     /* the negative status that goes with the words, 0 while unset */
    char text[384]; /* one line, no newline, NUL-terminated */
};

/* "EPOOL" for CST_EPOOL; "?" for a number that is not in the list. Any thread. */
const char *cst_status_name(int status);

/* The list's words for @status. Any thread. */
const char *cst_status_words(int status);

/* True where trying again later can help. Any thread. */
bool cst_status_retryable(int status);

/* Write @status and the formatted words into @err (NULL is allowed) and return @status. Bytes that
 * a terminal could obey or that are not UTF-8 become "\xNN". A failing function can end in `return
 * cst_err_set(err, CST_EPOOL, "...", ...)`. */
int cst_err_set(struct cst_err *err, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "words: " before the text of @err and return its status. */
int cst_err_prefix(struct cst_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* As cst_err_set, with ": strerror(errnum)" behind the words. */
int cst_err_errno(struct cst_err *err, int status, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#ifdef __cplusplus
}
#endif

#endif
