/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of all statuses and reasons, and the form in which errors are returned. The numbers are
 * part of the wire protocol: a number is never reused; new statuses and reasons are appended.
 *
 * A function returns 0 (CST_OK) or a negative status. If the cause needs words, the function's last
 * parameter is a `struct cst_err *err`. The first function that knows the cause writes it there,
 * with its numbers; callers may put a prefix before it ("outer: inner"). Only the daemon and
 * programs print errors. */
#ifndef CST_STATUS_H
#define CST_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, number, retryable, words). retryable: the same call can succeed later. */
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
    X(EDRAINING, 21, true, "the daemon is shutting down")                                          \
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

/* X(name, number, words). What an error of a status is about, if there is something that callers do
 * only then, such as to name the argument that helps. A program does not read texts: it compares
 * the status, and then the reason. An error that nobody treats in a way of its own has none. */
#define CST_REASON_MAP(X)                                                                          \
    X(NONE, 0, "The status says all.")                                                             \
    X(OPTION, 1, "The job has another value of an option; 'reshape' can change it.")               \
    X(FIXED_OPTION, 2, "The job has another value of an option, and keeps it for life.")           \
    X(WORLD, 3, "The job has another number of ranks.")                                            \
    X(POOL, 4, "The pool of the rank has another size or is on another device.")                   \
    X(MODEL, 5, "The tensors are not those of the job or of another rank.")                        \
    X(DTYPE, 6, "A tensor has another type in the job or in another rank.")                        \
    X(PATTERN, 7, "A tensor has another pattern there, such as frozen.")                           \
    X(PARAM_GROUP, 8, "A tensor is in another parameter group there.")                             \
    X(TENSOR_UPDATE, 9, "A tensor has another update there, such as that of Muon.")                \
    X(OPERATORS, 10, "The operators are not those of the job or of another rank.")                 \
    X(POOL_MEMORY, 11, "There is too little memory for pools.")                                    \
    X(HOST_MEMORY, 12, "There is too little host memory, in which states are.")                    \
    X(JOBS, 13, "There are as many jobs as there may be.")                                         \
    X(HANDED_IN, 14, "The gradient was handed in already.")                                        \
    X(LAST_MICRO_BATCH, 15, "The micro-batch is the last one of the step.")

enum cst_reason {
#define CST_REASON_X(name, number, words) CST_REASON_##name = (number),
    CST_REASON_MAP(CST_REASON_X)
#undef CST_REASON_X
};

/* The cause of an error. It owns nothing and can be copied. */
struct cst_err {
    int status;             /* The negative status of the error; 0: no error was written. */
    enum cst_reason reason; /* What the error is about; CST_REASON_NONE: the status says all. */
    char text[640];         /* One line of text without a newline, NUL-terminated. */
};

/* Return the name of @status, for example "EPOOL" for CST_EPOOL; "?" for a number that is not in
 * the list. The string is static. Any thread. */
const char *cst_status_name(int status);

/* Return the list's description of @status. The string is static. Any thread. */
const char *cst_status_words(int status);

/* Return whether the same call can succeed later. Any thread. */
bool cst_status_retryable(int status);

/* Write @status and the formatted words into @err, without a reason, and return @status. @err may
 * be NULL. Each control character and each byte that is not UTF-8 becomes "\xNN". A failing
 * function can end with `return cst_err_set(err, CST_EPOOL, "...", ...)`. */
int cst_err_set(struct cst_err *err, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Put the formatted words and ": " before the text of @err, which keeps its reason, and return the
 * status of @err. If @err is NULL, return CST_EINTERNAL. */
int cst_err_prefix(struct cst_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Do the same as cst_err_set, with ": " and the text of strerror(errnum) after the words. */
int cst_err_errno(struct cst_err *err, int status, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#ifdef __cplusplus
}
#endif

#endif
