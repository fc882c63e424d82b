/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the engine programs: options, signals and the end of the process. Each program
 * drives one kind of device. */
#ifndef CST_ENGINE_MAIN_H
#define CST_ENGINE_MAIN_H

#include "kernels/engine/device.h"
#include "kernels/engine/rates.h"

#include <stdio.h>

/* The devices between which the command line chooses. */
enum cste_engine_device {
    CSTE_ENGINE_OWN,   /* The program's own device; every program has one. */
    CSTE_ENGINE_PACED, /* --paced: a simulated accelerator. NULL: there is no such option. */
    CSTE_ENGINE_DISK,  /* --disk: a drive. NULL: there is no such option. */
    CSTE_ENGINE_DEVICES,
};

/* Description of an engine program. */
struct cste_engine_program {
    const char *name; /* Name of the program, such as "cistern-engine-host". */
    /* Sentence of --help about the program, up to the words "for cisternd". */
    const char *what;
    /* Tables of the devices that it can drive. */
    const struct cste_device_ops *ops[CSTE_ENGINE_DEVICES];
    /* Option --probe: write the list of devices to @to. NULL: the program has no such option. */
    int (*probe)(FILE *to, struct cst_err *err);
    /* Option --rates: measure the machine and write the results to @to. NULL: the program has no
     * such option. */
    int (*rates)(const struct cste_engine_rates_options *options, FILE *to, struct cst_err *err);
};

/* Run program @which. By default, file descriptor 3 is a socket to cisternd. Returns the exit
 * status, or ends the process. */
int cste_engine_main(const struct cste_engine_program *which, int argc, char **argv);

#endif
