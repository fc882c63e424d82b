/* SPDX-License-Identifier: Apache-2.0 */
/* Times of all-reduces of fp32 with MPI, in the form of bench_comm --calls. tests/bench/collectives
 * compiles and starts it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 61, LARGE = 1 << 20, SMALL = 4096 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1024, SMALL, 65536, LARGE, 16 * LARGE};
    float *in = calloc(16 * LARGE, 1), *out = calloc(16 * LARGE, 1);
    int rank;

    (void)MPI_Init(&argc, &argv);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const int n = sizes[s] > LARGE ? 2 : sizes[s] == LARGE ? 10 : 200;
        double times[TURNS];

        for (int i = 0; i < TURNS; i++) {
            double from;

            (void)MPI_Barrier(MPI_COMM_WORLD);
            from = MPI_Wtime();
            for (int k = 0; k < n; k++) {
                (void)MPI_Allreduce(in, out, (int)(sizes[s] / sizeof *in), MPI_FLOAT, MPI_SUM,
                                    MPI_COMM_WORLD);
            }
            times[i] = (MPI_Wtime() - from) * 1e6 / n;
        }
        qsort(times, TURNS, sizeof *times, compare);
        if (rank == 0) {
            printf("%zu %.2f\n", sizes[s], times[TURNS / 2]);
        }
    }
    free(in);
    free(out);
    return MPI_Finalize();
}
