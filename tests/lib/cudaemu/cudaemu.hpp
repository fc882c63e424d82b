// SPDX-License-Identifier: Apache-2.0
/* CUDA's language for a kernel that is compiled as C++: qualifiers, indices, vectors, barriers, the
 * warp's collectives, atomics, and arithmetic with a given rounding. kernels/cuda/cuda.cuh includes
 * this file if nvcc does not compile it. Add here what a new kernel needs. Compile with
 * -ffp-contract=off -Wno-unknown-pragmas. Shared memory of fixed size is a static array, and
 * dynamic shared memory is allocated by CST_DYNAMIC_SHARED; AddressSanitizer finds accesses beyond
 * the end of both. */
#ifndef CST_CUDAEMU_HPP
#define CST_CUDAEMU_HPP

#include "tests/lib/cudaemu/block.hpp"

#include <math.h>
#include <stdint.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define CST_DYNAMIC_SHARED(type, name)                                                             \
    type *name = reinterpret_cast<type *>(::cudaemu::dynamic_shared)

#define CST_KERNEL(name)                                                                           \
    static void cudaemu_run_##name(const unsigned grid[3], const unsigned block[3],                \
                                   unsigned shared, void **params)                                 \
    {                                                                                              \
        auto bound = ::cudaemu::bind(name, params);                                                \
                                                                                                   \
        ::cudaemu::launch(#name, grid, block, shared, decltype(bound)::run, &bound);               \
    }                                                                                              \
    extern "C" const struct cst_emu_kernel cst_emu_##name;                                         \
    const struct cst_emu_kernel cst_emu_##name = {                                                 \
        #name, cudaemu_run_##name, decltype(::cudaemu::bind(name, nullptr))::param_bytes}

#define threadIdx (::cudaemu::now->idx)
#define blockIdx (::cudaemu::block_idx)
#define blockDim (::cudaemu::block_dim)
#define gridDim (::cudaemu::grid_dim)
#define warpSize 32

/* ---- vectors ---- */

#define CST_EMU_VECTORS(T, name, align2, align4)                                                   \
    struct __attribute__((aligned(align2))) name##2                                                \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    struct __attribute__((aligned(align4))) name##4                                                \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline name##2 make_##name##2(T x, T y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                       \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }

CST_EMU_VECTORS(int, int, 8, 16)
CST_EMU_VECTORS(unsigned, uint, 8, 16)
CST_EMU_VECTORS(float, float, 8, 16)
CST_EMU_VECTORS(unsigned short, ushort, 4, 8)
#undef CST_EMU_VECTORS

struct __attribute__((aligned(16))) double2 {
    double x, y;
};

static inline double2 make_double2(double x, double y)
{
    return {x, y};
}

/* ---- loads and stores with a cache hint, ld.global and st.global. As on the GPU, an address must
 * be a multiple of the size and in global memory ---- */

namespace cudaemu
{

template <class T> void check_address(const T *p, const char *what)
{
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) {
        broken("%s of %zu bytes at %p", what, sizeof(T), static_cast<const void *>(p));
    }
    if (!is_global(p)) {
        broken("%s of global memory at %p, which is %s", what, static_cast<const void *>(p),
               is_shared(p) ? "shared memory" : "the thread's own");
    }
}

template <class T> T load(const T *p)
{
    check_address(p, "a load");
    return *p;
}

template <class T> void store(T *p, const T &value)
{
    check_address(p, "a store");
    *p = value;
}

template <class T> struct same {
    typedef T type;
};

} // namespace cudaemu

#define CST_EMU_LOAD(name)                                                                         \
    template <class T> static inline T name(const T *p)                                            \
    {                                                                                              \
        return ::cudaemu::load(p);                                                                 \
    }
#define CST_EMU_STORE(name)                                                                        \
    template <class T>                                                                             \
    static inline void name(T *p, const typename ::cudaemu::same<T>::type &value)                  \
    {                                                                                              \
        ::cudaemu::store(p, value);                                                                \
    }

CST_EMU_LOAD(__ldg)
CST_EMU_LOAD(__ldca)
CST_EMU_LOAD(__ldcg)
CST_EMU_LOAD(__ldcs)
CST_EMU_LOAD(__ldlu)
CST_EMU_STORE(__stwb)
CST_EMU_STORE(__stcg)
CST_EMU_STORE(__stcs)
CST_EMU_STORE(__stwt)
#undef CST_EMU_LOAD
#undef CST_EMU_STORE

/* ---- barriers and collectives; file and line are those of the caller ---- */

static inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    ::cudaemu::barrier(file, line);
}

static inline void __syncwarp(unsigned mask = ~0u, const char *file = __builtin_FILE(),
                              int line = __builtin_LINE())
{
    (void)::cudaemu::exchange(mask, 0, file, line, [](auto) { return 0; });
}

static inline void __threadfence()
{
}

static inline void __threadfence_block()
{
}

static inline unsigned __activemask()
{
    ::cudaemu::broken("__activemask: who is active here is not defined");
}

/* The lanes of this lane's segment of @width lanes are base to base + width - 1. */
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize,
                            const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    unsigned w = static_cast<unsigned>(width);
    unsigned base = ::cudaemu::now->lane / w * w;

    return ::cudaemu::exchange(mask, value, file, line,
                               [=](auto of) { return of(base + static_cast<unsigned>(lane) % w); });
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                               const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    unsigned self = ::cudaemu::now->lane;
    unsigned in_segment = self % static_cast<unsigned>(width);

    return ::cudaemu::exchange(mask, value, file, line, [=](auto of) {
        return of(in_segment >= delta ? self - delta : self);
    });
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                                 const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    unsigned self = ::cudaemu::now->lane;
    unsigned w = static_cast<unsigned>(width);

    return ::cudaemu::exchange(mask, value, file, line, [=](auto of) {
        return of(self % w + delta < w ? self + delta : self);
    });
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize,
                                const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    unsigned self = ::cudaemu::now->lane;
    unsigned w = static_cast<unsigned>(width);
    unsigned from = self ^ static_cast<unsigned>(bits);

    return ::cudaemu::exchange(mask, value, file, line,
                               [=](auto of) { return of(from < self / w * w + w ? from : self); });
}

static inline unsigned __ballot_sync(unsigned mask, int predicate,
                                     const char *file = __builtin_FILE(),
                                     int line = __builtin_LINE())
{
    return ::cudaemu::exchange(mask, predicate, file, line, [=](auto of) {
        unsigned bits = 0;

        for (unsigned lane = 0; lane < ::cudaemu::WARP; lane++) {
            if ((mask >> lane & 1u) != 0 && of(lane) != 0) {
                bits |= 1u << lane;
            }
        }
        return bits;
    });
}

static inline int __any_sync(unsigned mask, int predicate, const char *file = __builtin_FILE(),
                             int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, const char *file = __builtin_FILE(),
                             int line = __builtin_LINE())
{
    return __ballot_sync(mask, !predicate, file, line) == 0;
}

/* ---- atomics: only one thread runs at a time ---- */

template <class T> static inline T atomicAdd(T *p, typename ::cudaemu::same<T>::type value)
{
    T old = *p;

    *p = old + value;
    return old;
}

template <class T> static inline T atomicMax(T *p, typename ::cudaemu::same<T>::type value)
{
    T old = *p;

    *p = old < value ? value : old;
    return old;
}

template <class T> static inline T atomicExch(T *p, typename ::cudaemu::same<T>::type value)
{
    T old = *p;

    *p = value;
    return old;
}

template <class T>
static inline T atomicCAS(T *p, typename ::cudaemu::same<T>::type compare,
                          typename ::cudaemu::same<T>::type value)
{
    T old = *p;

    *p = old == compare ? value : old;
    return old;
}

/* ---- bits ---- */

#define CST_EMU_BITS(name, From, To)                                                               \
    static inline To name(From from)                                                               \
    {                                                                                              \
        To to;                                                                                     \
                                                                                                   \
        static_assert(sizeof to == sizeof from, "");                                               \
        memcpy(&to, &from, sizeof to);                                                             \
        return to;                                                                                 \
    }

CST_EMU_BITS(__float_as_uint, float, unsigned)
CST_EMU_BITS(__uint_as_float, unsigned, float)
CST_EMU_BITS(__float_as_int, float, int)
CST_EMU_BITS(__int_as_float, int, float)
CST_EMU_BITS(__double_as_longlong, double, long long)
CST_EMU_BITS(__longlong_as_double, long long, double)
#undef CST_EMU_BITS

static inline double __hiloint2double(int hi, int lo)
{
    uint64_t bits =
        static_cast<uint64_t>(static_cast<uint32_t>(hi)) << 32 | static_cast<uint32_t>(lo);

    return __longlong_as_double(static_cast<long long>(bits));
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

template <class T> static inline T min(T a, typename ::cudaemu::same<T>::type b)
{
    return b < a ? b : a;
}

template <class T> static inline T max(T a, typename ::cudaemu::same<T>::type b)
{
    return a < b ? b : a;
}

/* ---- arithmetic, each operation rounded once to nearest even. The fast operations are exact here:
 * their results differ from a GPU's ---- */

#define CST_EMU_ARITHMETIC(T, fma_name, add, sub, mul, div, fma_function)                          \
    static inline T fma_name(T a, T b, T c)                                                        \
    {                                                                                              \
        return fma_function(a, b, c);                                                              \
    }                                                                                              \
    static inline T add(T a, T b)                                                                  \
    {                                                                                              \
        return a + b;                                                                              \
    }                                                                                              \
    static inline T sub(T a, T b)                                                                  \
    {                                                                                              \
        return a - b;                                                                              \
    }                                                                                              \
    static inline T mul(T a, T b)                                                                  \
    {                                                                                              \
        return a * b;                                                                              \
    }                                                                                              \
    static inline T div(T a, T b)                                                                  \
    {                                                                                              \
        return a / b;                                                                              \
    }

CST_EMU_ARITHMETIC(float, __fmaf_rn, __fadd_rn, __fsub_rn, __fmul_rn, __fdiv_rn, fmaf)
CST_EMU_ARITHMETIC(double, __fma_rn, __dadd_rn, __dsub_rn, __dmul_rn, __ddiv_rn, fma)
#undef CST_EMU_ARITHMETIC

static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}

static inline double __dsqrt_rn(double x)
{
    return sqrt(x);
}

static inline float __double2float_rn(double x)
{
    return static_cast<float>(x);
}

static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

/* glibc has functions named __expf and __logf. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

#endif
