/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine programs have in common: options, signals, the end. A program is one device. */
#ifndef CST_ENGINE_MAIN_H
#define CST_ENGINE_MAIN_H

#include "kernels/device.h"
#include "kernels/rates.h"

#include <stdio.h>

struct cst_engine_program {
    const char *name;                   /* "cistern-engine-host" */
    const char *what;                   /* what it does, up to "for cisternd" */
    const struct cst_device_ops *ops;   /* its device */
    const struct cst_device_ops *paced; /* its device with --paced; NULL: no such option */
    int (*probe)(
        FILE *to,
        struct cst_err *err); /* --probe: write what devices there are; NULL: no such option */
    int (*rates)(const struct cst_engine_rates_options *options, FILE *to,
                 struct cst_err *err); /* --rates: measure and write what it can do */
};

/* Be that program: a socket to cisternd is fd 3. Returns the exit status, or ends the process. */
int cst_engine_main(const struct cst_engine_program *which, int argc, char **argv);

#endif
