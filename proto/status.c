/* SPDX-License-Identifier: Apache-2.0 */
#include "cistern/status.h"

#include "proto/text.h"

#include <stdio.h>
#include <string.h>

const char *cst_status_name(int status)
{
    switch (-status) {
#define CST_STATUS_X(name, number, retryable, words)                                               \
    case number:                                                                                   \
        return #name;
        CST_STATUS_MAP(CST_STATUS_X)
#undef CST_STATUS_X
    default:
        return "?";
    }
}

const char *cst_status_words(int status)
{
    switch (-status) {
#define CST_STATUS_X(name, number, retryable, words)                                               \
    case number:                                                                                   \
        return words;
        CST_STATUS_MAP(CST_STATUS_X)
#undef CST_STATUS_X
    default:
        return "unknown status";
    }
}

bool cst_status_retryable(int status)
{
    switch (-status) {
#define CST_STATUS_X(name, number, retryable, words)                                               \
    case number:                                                                                   \
        return retryable;
        CST_STATUS_MAP(CST_STATUS_X)
#undef CST_STATUS_X
    default:
        return false;
    }
}

int cst_err_set(struct cst_err *err, int status, const char *fmt, ...)
{
    va_list ap;

    if (err == NULL) {
        return status;
    }
    err->status = status;
    err->reason = CST_REASON_NONE;
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    cst_text_clean(err->text, sizeof err->text);
    return status;
}

int cst_err_prefix(struct cst_err *err, const char *fmt, ...)
{
    struct cst_err inner;
    va_list ap;
    size_t used;

    if (err == NULL) {
        return CST_EINTERNAL;
    }
    inner = *err;
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    used = strlen(err->text);
    (void)snprintf(err->text + used, sizeof err->text - used, ": %s", inner.text);
    cst_text_clean(err->text, sizeof err->text);
    return err->status;
}

int cst_err_errno(struct cst_err *err, int status, int errnum, const char *fmt, ...)
{
    va_list ap;
    size_t used;

    if (err == NULL) {
        return status;
    }
    err->status = status;
    err->reason = CST_REASON_NONE;
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    used = strlen(err->text);
    (void)snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(errnum));
    cst_text_clean(err->text, sizeof err->text);
    return status;
}
