/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/parallel.h"

#include <dlfcn.h>
#include <sched.h>
#include <string.h>

/* ThreadSanitizer does not see the barriers of an OpenMP runtime that was built without it. */
#if defined(_OPENMP) && !defined(__SANITIZE_THREAD__)
#define USE_OPENMP 1
#else
#define USE_OPENMP 0
#endif

void gpt_parallel(unsigned n_threads, size_t n, gpt_parallel_fn fn, void *arg)
{
#if USE_OPENMP
    if (n_threads > 1) {
#pragma omp parallel for num_threads(n_threads) schedule(static, 1)
        for (unsigned t = 0; t < n_threads; t++) {
            const size_t first = n * t / n_threads, last = n * (t + 1) / n_threads;

            if (first < last) {
                fn(arg, t, first, last);
            }
        }
        return;
    }
#endif
    (void)n_threads;
    if (n > 0) {
        fn(arg, 0, 0, n);
    }
}

unsigned gpt_parallel_cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

/* Find OpenMP's function at run time: the program is not linked with an OpenMP runtime for this,
 * because only oneDNN determines which runtime is loaded, if any. */
void gpt_parallel_limit(unsigned n_threads)
{
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void (*set)(int);

    if (symbol != NULL) {
        memcpy(&set, &symbol, sizeof set);
        set((int)n_threads);
    }
}
