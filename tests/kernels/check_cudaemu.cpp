// SPDX-License-Identifier: Apache-2.0
/* Tests of the emulator itself: what kernels rely on, and that it detects broken kernels. */
#include "kernels/cuda/mma.cuh"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>

namespace
{

void run(const cst_emu_kernel &kernel, dim3 grid, dim3 block, unsigned shared, void **params)
{
    const unsigned g[3] = {grid.x, grid.y, grid.z};
    const unsigned b[3] = {block.x, block.y, block.z};

    kernel.run(g, b, shared, params);
}

template <class... A>
void run_with(const cst_emu_kernel &kernel, dim3 grid, dim3 block, unsigned shared, A... values)
{
    void *params[] = {&values...};

    run(kernel, grid, block, shared, params);
}

} // namespace

/* ---- correct kernels ----------- */

extern "C" void where(uint32_t *out)
{
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;

    out[block * blockDim.x * blockDim.y * blockDim.z + thread]++;
}
CST_KERNEL(where);

extern "C" void reverse(const uint32_t *in, uint32_t *out)
{
    CST_DYNAMIC_SHARED(uint32_t, all);

    all[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = all[blockDim.x - 1 - threadIdx.x];
}
CST_KERNEL(reverse);

extern "C" void collectives(uint64_t *out)
{
    const uint64_t mine = 1000 + threadIdx.x;
    const unsigned full = 0xffffffffu;
    uint64_t *o = out + threadIdx.x * 8;

    o[0] = __shfl_sync(full, mine, 5, 16);
    o[1] = __shfl_up_sync(full, mine, 3);
    o[2] = __shfl_down_sync(full, mine, 9, 16);
    o[3] = __shfl_xor_sync(full, mine, 17);
    o[4] = __ballot_sync(full, threadIdx.x % 3 == 0);
    o[5] = static_cast<uint64_t>(__any_sync(full, threadIdx.x == 40));
    o[6] = static_cast<uint64_t>(__all_sync(full, threadIdx.x < 32));
    if (threadIdx.x % 32 < 8) {
        o[7] = __shfl_xor_sync(0xffu, mine, 1);
    } else {
        o[7] = __shfl_xor_sync(0xffffff00u, mine, 2);
    }
}
CST_KERNEL(collectives);

extern "C" void early(float *sum)
{
    if (threadIdx.x >= 40) {
        return;
    }
    atomicAdd(sum, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        sum[1] = sum[0];
    }
}
CST_KERNEL(early);

/* ---- broken kernels ------------- */

extern "C" void no_barrier(const uint32_t *in, uint32_t *out)
{
    __shared__ uint32_t all[256];

    all[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = all[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
}
CST_KERNEL(no_barrier);

extern "C" void two_barriers(int)
{
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}
CST_KERNEL(two_barriers);

extern "C" void lanes_missing(int)
{
    if (threadIdx.x % 32 < 16) {
        (void)__shfl_sync(0xffffffffu, 1, 0);
    } else {
        __syncthreads();
    }
}
CST_KERNEL(lanes_missing);

extern "C" void other_lane(int)
{
    if (threadIdx.x < 16) {
        (void)__shfl_sync(0xffffu, 1, 20);
    }
}
CST_KERNEL(other_lane);

extern "C" void misaligned(const char *from)
{
    (void)__ldcs(reinterpret_cast<const uint4 *>(from + 8));
}
CST_KERNEL(misaligned);

extern "C" void global_load_of_shared(int)
{
    __shared__ uint32_t here[4];

    here[threadIdx.x] = 1;
    (void)__ldcs(&here[threadIdx.x]);
}
CST_KERNEL(global_load_of_shared);

extern "C" void global_store_to_shared(int)
{
    CST_DYNAMIC_SHARED(uint32_t, here);

    __stcs(&here[threadIdx.x], 1u);
}
CST_KERNEL(global_store_to_shared);

extern "C" void global_load_of_own(int)
{
    uint32_t own[4] = {threadIdx.x};

    (void)__ldg(&own[threadIdx.x]);
}
CST_KERNEL(global_load_of_own);

extern "C" void copy_to_global(uint16_t *to, const uint16_t *from)
{
    cst_copy_async(to, from, 16);
    cst_copy_wait<0>();
}
CST_KERNEL(copy_to_global);

extern "C" void matrix_of_global(const uint16_t *from)
{
    uint32_t piece[2];

    cst_ldmatrix_x2(piece, from + threadIdx.x % 16 * 8);
}
CST_KERNEL(matrix_of_global);

extern "C" void no_wait(const uint16_t *from)
{
    __shared__ __align__(16) uint16_t to[8];

    cst_copy_async(to, from, 16);
    cst_copy_commit();
}
CST_KERNEL(no_wait);

extern "C" void nothing(int)
{
}
CST_KERNEL(nothing);

/* Every thread of every block of a three-dimensional grid runs once, in any order. */
START_TEST(test_indices)
{
    uint32_t counts[2 * 3 * 4 * 60] = {};
    uint32_t *out = counts;

    for (unsigned long long order = 0; order < 4; order++) {
        cst_emu_shuffle(order);
        run_with(cst_emu_where, dim3(2, 3, 4), dim3(5, 4, 3), 0, out);
        for (uint32_t count : counts) {
            ck_assert_uint_eq(count, order + 1);
        }
    }
}
END_TEST

/* After a barrier threads see what other threads wrote to shared memory before it. */
START_TEST(test_barrier)
{
    static uint32_t in[3 * 1024];
    static uint32_t out[3 * 1024];
    const uint32_t *from = in;
    uint32_t *to = out;

    for (uint32_t i = 0; i < 3 * 1024; i++) {
        in[i] = i * 7;
    }
    for (unsigned long long order = 0; order < 4; order++) {
        cst_emu_shuffle(order);
        memset(out, 0, sizeof out);
        run_with(cst_emu_reverse, dim3(3), dim3(1024), 4096, from, to);
        for (uint32_t i = 0; i < 3 * 1024; i++) {
            ck_assert_uint_eq(out[i], in[i / 1024 * 1024 + 1023 - i % 1024]);
        }
    }
}
END_TEST

/* A kernel that lacks a barrier gives wrong results in some order. */
START_TEST(test_missing_barrier_shows)
{
    uint32_t in[256];
    uint32_t out[256];
    const uint32_t *from = in;
    uint32_t *to = out;
    bool wrong = false;

    for (uint32_t i = 0; i < 256; i++) {
        in[i] = i + 1;
    }
    for (unsigned long long order = 0; order < 4; order++) {
        cst_emu_shuffle(order);
        run_with(cst_emu_no_barrier, dim3(1), dim3(256), 0, from, to);
        for (uint32_t i = 0; i < 256; i++) {
            wrong = wrong || out[i] != in[255 - i];
        }
    }
    ck_assert(wrong);
}
END_TEST

/* Shuffles in segments, votes, and two halves of a warp that diverge. */
START_TEST(test_collectives)
{
    uint64_t got[64][8];
    uint64_t *out = &got[0][0];

    for (unsigned long long order = 0; order < 4; order++) {
        cst_emu_shuffle(order);
        run_with(cst_emu_collectives, dim3(1), dim3(64), 0, out);
        for (unsigned i = 0; i < 64; i++) {
            unsigned lane = i % 32;
            unsigned warp = i / 32 * 32;
            unsigned votes = warp == 0 ? 0x49249249u : 0x92492492u; /* multiples of 3 */

            ck_assert_uint_eq(got[i][0], 1000 + i / 16 * 16 + 5);
            ck_assert_uint_eq(got[i][1], 1000 + (lane >= 3 ? i - 3 : i));
            ck_assert_uint_eq(got[i][2], 1000 + (i % 16 < 7 ? i + 9 : i));
            ck_assert_uint_eq(got[i][3], 1000 + (i ^ 17));
            ck_assert_uint_eq(got[i][4], votes);
            ck_assert_uint_eq(got[i][5], warp == 32);
            ck_assert_uint_eq(got[i][6], warp == 0);
            ck_assert_uint_eq(got[i][7], 1000 + (lane < 8 ? i ^ 1 : i ^ 2));
        }
    }
}
END_TEST

/* A barrier waits only for threads that have not returned. */
START_TEST(test_returned_threads)
{
    float sum[2] = {};
    float *out = sum;

    run_with(cst_emu_early, dim3(1), dim3(64), 0, out);
    ck_assert(sum[1] == 40.0f);
}
END_TEST

/* Products of matrices are right with each way to load fragments, and the rest of a copy that ends
 * early is zero. Small integers make the sums exact in any order. */
START_TEST(test_mma)
{
    alignas(16) uint16_t a[16][16], a_trans[16][16], b[16][8], b_trans[8][16];
    float c[3][16][8];
    const uint32_t whole = 100;

    for (unsigned k = 0; k < 16; k++) {
        for (unsigned m = 0; m < 16; m++) {
            a[m][k] = a_trans[k][m] = cst_bf16_down(static_cast<float>((m * 5 + k * 3) % 11) - 4);
        }
        for (unsigned n = 0; n < 8; n++) {
            b[k][n] = b_trans[n][k] = cst_bf16_down(static_cast<float>((n * 7 + k) % 13) - 6);
        }
    }
    for (unsigned long long order = 0; order < 4; order++) {
        cst_emu_shuffle(order);
        run_with(*cst_emu_find("cst_probe_mma"), dim3(1), dim3(32), 0, &a[0][0], &a_trans[0][0],
                 &b_trans[0][0], &b[0][0], whole, &c[0][0][0]);
        for (unsigned m = 0; m < 16; m++) {
            for (unsigned n = 0; n < 8; n++) {
                float want = 0;
                float part = 0;

                for (unsigned k = 0; k < 16; k++) {
                    float product = cst_bf16_up(a[m][k]) * cst_bf16_up(b[k][n]);

                    want += product;
                    part += m * 16 + k < whole ? product : 0;
                }
                ck_assert(c[0][m][n] == want);
                ck_assert(c[1][m][n] == want);
                ck_assert(c[2][m][n] == part);
            }
        }
    }
}
END_TEST

/* Each of these kernels ends the process with a message. */

START_TEST(test_other_barrier)
{
    run_with(cst_emu_two_barriers, dim3(1), dim3(64), 0, 0);
}
END_TEST

START_TEST(test_deadlock)
{
    run_with(cst_emu_lanes_missing, dim3(1), dim3(64), 0, 0);
}
END_TEST

START_TEST(test_absent_lane)
{
    run_with(cst_emu_other_lane, dim3(1), dim3(32), 0, 0);
}
END_TEST

START_TEST(test_misaligned)
{
    alignas(16) const char bytes[32] = {};
    const char *from = bytes;

    run_with(cst_emu_misaligned, dim3(1), dim3(1), 0, from);
}
END_TEST

START_TEST(test_global_load_of_shared)
{
    run_with(cst_emu_global_load_of_shared, dim3(1), dim3(4), 0, 0);
}
END_TEST

START_TEST(test_global_store_to_shared)
{
    run_with(cst_emu_global_store_to_shared, dim3(1), dim3(4), 16, 0);
}
END_TEST

START_TEST(test_global_load_of_own)
{
    run_with(cst_emu_global_load_of_own, dim3(1), dim3(4), 0, 0);
}
END_TEST

START_TEST(test_copy_to_global)
{
    alignas(16) uint16_t bytes[16] = {};
    uint16_t *to = bytes + 8;
    const uint16_t *from = bytes;

    run_with(cst_emu_copy_to_global, dim3(1), dim3(1), 0, to, from);
}
END_TEST

START_TEST(test_matrix_of_global)
{
    alignas(16) uint16_t bytes[16 * 8] = {};
    const uint16_t *from = bytes;

    run_with(cst_emu_matrix_of_global, dim3(1), dim3(32), 0, from);
}
END_TEST

START_TEST(test_unawaited_copy)
{
    alignas(16) const uint16_t bytes[8] = {};
    const uint16_t *from = bytes;

    run_with(cst_emu_no_wait, dim3(1), dim3(1), 0, from);
}
END_TEST

START_TEST(test_block_too_large)
{
    run_with(cst_emu_nothing, dim3(1), dim3(1025), 0, 0);
}
END_TEST

START_TEST(test_empty_grid)
{
    run_with(cst_emu_nothing, dim3(0), dim3(1), 0, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudaemu");
    TCase *right = suite_case(suite, "right", NULL, NULL);
    TCase *broken = suite_case(suite, "broken", NULL, NULL);

    tcase_add_test(right, test_indices);
    tcase_add_test(right, test_barrier);
    tcase_add_test(right, test_missing_barrier_shows);
    tcase_add_test(right, test_collectives);
    tcase_add_test(right, test_returned_threads);
    tcase_add_test(right, test_mma);
    tcase_add_test_raise_signal(broken, test_other_barrier, SIGABRT);
    tcase_add_test_raise_signal(broken, test_deadlock, SIGABRT);
    tcase_add_test_raise_signal(broken, test_absent_lane, SIGABRT);
    tcase_add_test_raise_signal(broken, test_misaligned, SIGABRT);
    tcase_add_test_raise_signal(broken, test_global_load_of_shared, SIGABRT);
    tcase_add_test_raise_signal(broken, test_global_store_to_shared, SIGABRT);
    tcase_add_test_raise_signal(broken, test_global_load_of_own, SIGABRT);
    tcase_add_test_raise_signal(broken, test_copy_to_global, SIGABRT);
    tcase_add_test_raise_signal(broken, test_matrix_of_global, SIGABRT);
    tcase_add_test_raise_signal(broken, test_unawaited_copy, SIGABRT);
    tcase_add_test_raise_signal(broken, test_block_too_large, SIGABRT);
    tcase_add_test_raise_signal(broken, test_empty_grid, SIGABRT);
    return suite_run(suite);
}
