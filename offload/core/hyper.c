/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/hyper.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t at;       /* Offset of the float in struct cst_hyper, in bytes. */
    float low, high; /* Valid range: low <= value < high. */
} fields[] = {
    {"lr", offsetof(struct cst_hyper, lr), 0.0f, INFINITY},
    {"beta1", offsetof(struct cst_hyper, beta1), 0.0f, 1.0f},
    {"beta2", offsetof(struct cst_hyper, beta2), 0.0f, 1.0f},
    {"eps", offsetof(struct cst_hyper, eps), 0.0f, INFINITY},
    {"weight_decay", offsetof(struct cst_hyper, weight_decay), 0.0f, INFINITY},
    {"clip_norm", offsetof(struct cst_hyper, clip_norm), 0.0f, INFINITY},
    {"grad_scale", offsetof(struct cst_hyper, grad_scale), 0.0f, INFINITY},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

static float value_of(const struct cst_hyper *hyper, size_t field)
{
    float value;

    memcpy(&value, (const char *)hyper + fields[field].at, sizeof value);
    return value;
}

int cst_hyper_check(const struct cst_hyper *hyper, struct cst_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        float v = value_of(hyper, i);

        if (!isfinite(v) || v < fields[i].low || v >= fields[i].high) {
            return cst_err_set(err, CST_EINVAL, "%s = %g: %g <= %s < %g is required",
                               fields[i].name, (double)v, (double)fields[i].low, fields[i].name,
                               (double)fields[i].high);
        }
    }
    return CST_OK;
}

int cst_hyper_same(const struct cst_hyper *a, const struct cst_hyper *b, const char *in_a,
                   const char *in_b, struct cst_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        float x = value_of(a, i);
        float y = value_of(b, i);

        if (memcmp(&x, &y, sizeof x) != 0) {
            return cst_err_set(err, CST_EMISMATCH, "%s is %.9g in %s and %.9g in %s",
                               fields[i].name, (double)x, in_a, (double)y, in_b);
        }
    }
    return CST_OK;
}
