/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/base/hyper.h"

#include "offload/core/core_state.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t at;        /* Offset of the double in struct cst_hyper, in bytes. */
    double low, high; /* Valid range: low <= value < high. */
} fields[] = {
    {"lr", offsetof(struct cst_hyper, lr), 0.0, FLT_MAX},
    {"beta1", offsetof(struct cst_hyper, beta1), 0.0, 1.0},
    {"beta2", offsetof(struct cst_hyper, beta2), 0.0, 1.0},
    {"eps", offsetof(struct cst_hyper, eps), 0.0, FLT_MAX},
    {"weight_decay", offsetof(struct cst_hyper, weight_decay), 0.0, FLT_MAX},
    {"clip_norm", offsetof(struct cst_hyper, clip_norm), 0.0, INFINITY},
    {"grad_scale", offsetof(struct cst_hyper, grad_scale), 0.0, FLT_MAX},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

static double value_of(const struct cst_hyper *hyper, size_t field)
{
    double value;

    memcpy(&value, (const char *)hyper + fields[field].at, sizeof value);
    return value;
}

int cst_hyper_check(const struct cst_hyper *hyper, struct cst_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        double v = value_of(hyper, i);

        if (!isfinite(v) || v < fields[i].low || v >= fields[i].high) {
            return cst_err_set(err, CST_EINVAL, "%s = %g: %g <= %s < %g is required",
                               fields[i].name, v, fields[i].low, fields[i].name, fields[i].high);
        }
    }
    return CST_OK;
}

int cst_hyper_same(const struct cst_hyper *a, const struct cst_hyper *b, const char *in_a,
                   const char *in_b, struct cst_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        double x = value_of(a, i);
        double y = value_of(b, i);

        if (memcmp(&x, &y, sizeof x) != 0) {
            return cst_err_set(err, CST_EMISMATCH, "%s is %.17g in %s and %.17g in %s",
                               fields[i].name, x, in_a, y, in_b);
        }
    }
    if (a->factors != b->factors) {
        return cst_err_set(err, CST_EMISMATCH,
                           "the factors of parameter groups in %s are not those in %s", in_a, in_b);
    }
    return CST_OK;
}

void cst_hyper_take_factors(struct cst_core *core, const struct cst_event *event)
{
    if (event->factors != NULL) {
        core->factors = *event->factors;
    } else {
        core->factors.n = 0;
    }
}

void cst_hyper_read_factors(struct cst_core *core, uint64_t mark)
{
    core->factors = core->table->factors[mark % 2];
}

void cst_hyper_write_factors(const struct cst_core *core, uint64_t mark)
{
    if (core->table != NULL) {
        core->table->factors[mark % 2] = core->factors;
    }
}
