/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/cuda_rig.h"

#include "tests/lib/fake_gpu.h"
#include "tests/lib/train_cuda.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char leaks[64]; /* file with a line that each process writes at its end */

void cuda_rig_open(const char *config)
{
    cuda_rig_open_gpus(config, 2);
}

void cuda_rig_open_gpus(const char *config, unsigned n_gpus)
{
    char number[16];

    (void)snprintf(number, sizeof number, "%u", n_gpus);
    (void)snprintf(leaks, sizeof leaks, "/tmp/cst-leaks-%d", (int)getpid());
    (void)unlink(leaks); /* A test that failed has left it, and had the same number. */
    (void)setenv("CST_FAKECUDA_LEAKS", leaks, 1);
    (void)setenv("CST_FAKECUDA_DEVICES", number, 1);
    (void)setenv("CST_FAKECUDA_MEMORY", "1GiB", 1);
    (void)setenv("CISTERN_ENGINE_CUDA", FAKE_GPU_ENGINE, 1);
    fake_gpu_open_ledger();
    train_rig_start(config, (const char *[]){"--gpus=all", "--engine-threads=2", NULL});
    train_like.streams = &train_cuda;
    ck_assert_uint_eq(raw_stat(&witness)->n_gpus, n_gpus);
}

void cuda_rig_dawdle(bool late)
{
    char seed[32];

    if (!late) {
        (void)unsetenv("CST_FAKECUDA_DELAY_US");
        return;
    }
    (void)snprintf(seed, sizeof seed, "%lld", (long long)time(NULL));
    (void)setenv("CST_FAKECUDA_SEED", seed, 0); /* the driver prints the seed */
    (void)setenv("CST_FAKECUDA_DELAY_US", "500", 1);
}

static void check_leaks(void)
{
    FILE *file = fopen(leaks, "r");
    char line[1024];
    int n = 0;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        ck_assert_msg(strstr(line, "\"misuses\":0,") != NULL, "%s", line);
        ck_assert_msg(strstr(line, "\"leaks\":0,") != NULL || strstr(line, "\"faults\":0}") == NULL,
                      "%s", line);
        n++;
    }
    ck_assert_int_gt(n, 0); /* The probe reports, and so do workers. Engines end by _exit. */
    (void)fclose(file);
    (void)unlink(leaks);
}

void cuda_rig_close(void)
{
    train_rig_stop();
    cuda_rig_check_end();
}

void cuda_rig_check_end(void)
{
    check_leaks();
    ck_assert_uint_eq(fake_gpu_used(), 0);
    fake_gpu_close_ledger();
}

long cuda_rig_reported(void)
{
    FILE *file = fopen(leaks, "r");
    long bytes;

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    bytes = ftell(file);
    (void)fclose(file);
    return bytes;
}

bool cuda_rig_has_fault(pid_t pid, long from)
{
    FILE *file = fopen(leaks, "r");
    char line[1024], key[32];
    bool has = true; /* a driver that was never ready writes no line */

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, from, SEEK_SET), 0);
    (void)snprintf(key, sizeof key, "{\"pid\":%d,", (int)pid);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            has = strstr(line, "\"faults\":0}") == NULL;
        }
    }
    (void)fclose(file);
    return has;
}
