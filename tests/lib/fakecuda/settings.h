/* SPDX-License-Identifier: Apache-2.0 */
/* The settings in CST_FAKECUDA_* and CUDA_VISIBLE_DEVICES, which are read once, at the first call.
 * An invalid value is a mistake of the test and ends the process with a message. */
#ifndef CST_FAKE_SETTINGS_H
#define CST_FAKE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_FAKE_MAX_DEVICES 8

/* A device attribute that the test has set. */
struct cst_fake_attribute {
    int number; /* a CUdevice_attribute */
    int value;  /* value that replaces the usual one */
};

/* All settings. */
struct cst_fake_settings {
    int n_devices;                             /* number of devices in the machine */
    size_t memory_bytes[CST_FAKE_MAX_DEVICES]; /* size of each device's memory */
    bool mig[CST_FAKE_MAX_DEVICES];            /* per device: the device is a MIG instance */
    /* Per pair of devices: the first can access the memory of the second. */
    bool peer[CST_FAKE_MAX_DEVICES][CST_FAKE_MAX_DEVICES];
    int capability;                           /* compute capability, as 10 x major + minor */
    struct cst_fake_attribute attributes[16]; /* attributes that the test has set */
    size_t n_attributes;                      /* number of entries in `attributes` */
    int driver;                               /* result of cuDriverGetVersion */
    bool proc_null; /* cuGetProcAddress returns success and NULL for functions that do not exist */
    size_t pinned_bytes;   /* host memory that a process may pin */
    bool pageable;         /* copies may use host memory that is not pinned */
    unsigned delay_us;     /* largest usual delay before an operation of a stream */
    uint64_t seed;         /* seed of the delays */
    const char *state_dir; /* folder of the ledger; NULL: each process counts its own memory */
    const char *leak_file; /* file that receives a line at exit; NULL: none */
    const char *faults;    /* value of CST_FAKECUDA_FAIL; NULL: none */
    const char *visible;   /* value of CUDA_VISIBLE_DEVICES; NULL: all devices are visible */
};

/* The settings of this process. */
const struct cst_fake_settings *cst_fake_settings(void);

/* Report an invalid value in the environment and end the process. */
_Noreturn void cst_fake_bad_setting(const char *name, const char *value);

#endif
