// SPDX-License-Identifier: Apache-2.0
/* kernels/cuda/mma.cuh for the processor. Each lane's fragments go to all lanes of its warp, and
 * each lane computes its part of the result. Sums are computed one term after the other in fp32,
 * which is one of the orders that a GPU may use. An asynchronous copy is made when it is waited
 * for, so that a missing wait shows. */
#ifndef CST_CUDAEMU_MMA_HPP
#define CST_CUDAEMU_MMA_HPP

#include "tests/lib/cudaemu/cudaemu.hpp"

namespace cudaemu
{

struct fragments {
    uint32_t a[4], b[2];
};

struct row {
    uint32_t pair[4]; /* 8 elements */
};

static inline float half_of(uint32_t pair, unsigned upper)
{
    return __uint_as_float(upper != 0 ? pair & 0xffff0000u : pair << 16);
}

/* A[@i][@k] and B[@k][@j], taken from the lanes that hold them. */
template <class Of> float element_a(Of of, unsigned i, unsigned k)
{
    return half_of(of(i % 8 * 4 + k % 8 / 2).a[i / 8 + k / 8 * 2], k % 2);
}

template <class Of> float element_b(Of of, unsigned k, unsigned j)
{
    return half_of(of(j * 4 + k % 8 / 2).b[k / 8], k % 2);
}

/* This lane's elements of @N pieces, whose rows the lanes bring. */
template <unsigned N>
static inline void load_pieces(uint32_t *out, const void *address, bool transposed,
                               const char *file, int line)
{
    const unsigned g = now->lane / 4;
    const unsigned t = now->lane % 4;
    struct result {
        uint32_t v[N];
    };
    row mine = {};

    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
        broken("ldmatrix in %s:%d: a row at %p", file, line, address);
    }
    if (now->lane < 8 * N && !is_shared(address)) {
        broken("ldmatrix in %s:%d: %p is not shared memory", file, line, address);
    }
    if (now->lane < 8 * N) {
        memcpy(&mine, address, sizeof mine);
    }
    result r = exchange(~0u, mine, file, line, [=](auto of) {
        result here;

        for (unsigned m = 0; m < N; m++) {
            if (!transposed) {
                here.v[m] = of(8 * m + g).pair[t];
                continue;
            }
            uint32_t lower = of(8 * m + 2 * t).pair[g / 2] >> (16 * (g % 2)) & 0xffffu;
            uint32_t upper = of(8 * m + 2 * t + 1).pair[g / 2] >> (16 * (g % 2)) & 0xffffu;

            here.v[m] = lower | upper << 16;
        }
        return here;
    });

    memcpy(out, r.v, sizeof r.v);
}

} // namespace cudaemu

static inline void cst_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2],
                                const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    const ::cudaemu::fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const unsigned g = ::cudaemu::now->lane / 4;
    const unsigned t = ::cudaemu::now->lane % 4;
    const float4 sum = ::cudaemu::exchange(~0u, mine, file, line, [=](auto of) {
        float s[4] = {c[0], c[1], c[2], c[3]};

        for (unsigned k = 0; k < 16; k++) {
            for (unsigned e = 0; e < 4; e++) {
                s[e] += ::cudaemu::element_a(of, g + e / 2 * 8, k) *
                        ::cudaemu::element_b(of, k, 2 * t + e % 2);
            }
        }
        return make_float4(s[0], s[1], s[2], s[3]);
    });

    c[0] = sum.x;
    c[1] = sum.y;
    c[2] = sum.z;
    c[3] = sum.w;
}

static inline void cst_ldmatrix_x4(uint32_t out[4], const void *row,
                                   const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    ::cudaemu::load_pieces<4>(out, row, false, file, line);
}

static inline void cst_ldmatrix_x4_trans(uint32_t out[4], const void *row,
                                         const char *file = __builtin_FILE(),
                                         int line = __builtin_LINE())
{
    ::cudaemu::load_pieces<4>(out, row, true, file, line);
}

static inline void cst_ldmatrix_x2(uint32_t out[2], const void *row,
                                   const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    ::cudaemu::load_pieces<2>(out, row, false, file, line);
}

static inline void cst_ldmatrix_x2_trans(uint32_t out[2], const void *row,
                                         const char *file = __builtin_FILE(),
                                         int line = __builtin_LINE())
{
    ::cudaemu::load_pieces<2>(out, row, true, file, line);
}

static inline void cst_copy_async(void *to, const void *from, uint32_t bytes)
{
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 ||
        bytes > 16) {
        ::cudaemu::broken("cp.async of %u bytes from %p to %p", bytes, from, to);
    }
    if ((bytes > 0 && !::cudaemu::is_global(from)) || !::cudaemu::is_shared(to)) {
        ::cudaemu::broken("cp.async from %p to %p: not from global to shared memory", from, to);
    }
    ::cudaemu::copy_later(to, from, bytes, 16 - bytes);
}

static inline void cst_copy_commit()
{
    ::cudaemu::copy_commit();
}

template <int KEEP> static inline void cst_copy_wait()
{
    ::cudaemu::copy_wait(KEEP);
}

static inline uint32_t cst_bf16_pair_fast(float first, float second)
{
    return cst_bf16_pair(cst_bf16_down(first), cst_bf16_down(second));
}

#endif
