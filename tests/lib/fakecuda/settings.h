/* SPDX-License-Identifier: Apache-2.0 */
/* What CST_FAKECUDA_* and CUDA_VISIBLE_DEVICES say, read once, at the first call. A value that
 * makes no sense ends the process with words: it is a mistake of the test. */
#ifndef CST_FAKE_SETTINGS_H
#define CST_FAKE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CST_FAKE_MAX_DEVICES 8

struct cst_fake_attribute {
    int number; /* CUdevice_attribute */
    int value;  /* instead of the usual one */
};

struct cst_fake_settings {
    int n_devices;                                         /* in the machine */
    size_t memory_bytes[CST_FAKE_MAX_DEVICES];             /* of each device */
    bool mig[CST_FAKE_MAX_DEVICES];                        /* each: is it a MIG instance? */
    bool peer[CST_FAKE_MAX_DEVICES][CST_FAKE_MAX_DEVICES]; /* do they reach each other's memory? */
    int capability;                                        /* 10 major + minor */
    struct cst_fake_attribute attributes[16];              /* set by hand */
    size_t n_attributes;                                   /* of those */
    int driver;                                            /* as cuDriverGetVersion has it */
    bool proc_null;        /* cuGetProcAddress: success and NULL for what is not there */
    size_t pinned_bytes;   /* host memory that a process may pin */
    bool pageable;         /* may copies use host memory that is not pinned? */
    unsigned delay_us;     /* the longest usual delay before an operation of a stream */
    uint64_t seed;         /* of the delays */
    const char *state_dir; /* the ledger's folder, NULL: this process counts for itself */
    const char *leak_file; /* gets a line at exit, NULL: none */
    const char *faults;    /* CST_FAKECUDA_FAIL, NULL: none */
    const char *visible;   /* CUDA_VISIBLE_DEVICES, NULL: all */
};

const struct cst_fake_settings *cst_fake_settings(void);

/* Say what is wrong with the environment and end the process. */
_Noreturn void cst_fake_bad_setting(const char *name, const char *value);

#endif
