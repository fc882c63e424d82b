/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#ifdef __aarch64__
#include <sys/auxv.h>
#define HWCAP_WITH_CRC32 (1ul << 7)
#elif defined __x86_64__
#include <nmmintrin.h>
#endif

#define POLYNOMIAL 0x82f63b78u /* bits reversed */
#define LANE 4096u             /* bytes of each of the three sums that run side by side */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t table[256];
/* ahead[k][b]: what byte k of a sum, of value b, becomes after LANE bytes of zeros. A sum is linear
 * in its bits, so that the four entries of a sum are combined by exclusive or. */
static uint32_t ahead[4][256];
static bool has_instruction;

static uint32_t plain(uint32_t sum, const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        sum = table[(sum ^ at[i]) & 0xff] ^ sum >> 8;
    }
    return sum;
}

static void make_tables(void)
{
    static const unsigned char zeros[LANE];

    for (uint32_t i = 0; i < 256; i++) {
        uint32_t sum = i;

        for (int bit = 0; bit < 8; bit++) {
            sum = sum & 1 ? sum >> 1 ^ POLYNOMIAL : sum >> 1;
        }
        table[i] = sum;
    }
    for (int k = 0; k < 4; k++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            ahead[k][1u << bit] = plain(1u << (8 * k + (int)bit), zeros, LANE);
        }
        for (unsigned b = 1; b < 256; b++) {
            ahead[k][b] = ahead[k][b & (b - 1)] ^ ahead[k][b & -b];
        }
    }
#ifdef __aarch64__
    has_instruction = (getauxval(AT_HWCAP) & HWCAP_WITH_CRC32) != 0;
#elif defined __x86_64__
    has_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

#if defined __aarch64__ || defined __x86_64__

#ifdef __aarch64__

#define WITH_INSTRUCTION

static inline uint32_t step(uint32_t sum, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(sum) : "r"(word));
    return sum;
}

static inline uint32_t step_byte(uint32_t sum, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(sum) : "r"((uint32_t)byte));
    return sum;
}

#else

#define WITH_INSTRUCTION __attribute__((target("sse4.2")))

WITH_INSTRUCTION static inline uint32_t step(uint32_t sum, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(sum, word);
}

WITH_INSTRUCTION static inline uint32_t step_byte(uint32_t sum, uint8_t byte)
{
    return _mm_crc32_u8(sum, byte);
}

#endif

static uint32_t skip_lane(uint32_t sum)
{
    return ahead[0][sum & 0xff] ^ ahead[1][sum >> 8 & 0xff] ^ ahead[2][sum >> 16 & 0xff] ^
           ahead[3][sum >> 24];
}

static uint64_t word_at(const unsigned char *at)
{
    uint64_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

WITH_INSTRUCTION static uint32_t by_instruction(uint32_t sum, const unsigned char *at, size_t bytes)
{
    for (; bytes >= 3 * LANE; at += 3 * LANE, bytes -= 3 * LANE) {
        uint32_t second = 0, third = 0;

        for (size_t i = 0; i < LANE; i += 8) {
            sum = step(sum, word_at(at + i));
            second = step(second, word_at(at + LANE + i));
            third = step(third, word_at(at + 2 * (size_t)LANE + i));
        }
        sum = skip_lane(skip_lane(sum) ^ second) ^ third;
    }
    for (; bytes >= 8; at += 8, bytes -= 8) {
        sum = step(sum, word_at(at));
    }
    for (; bytes > 0; at++, bytes--) {
        sum = step_byte(sum, *at);
    }
    return sum;
}

#else

static uint32_t by_instruction(uint32_t sum, const unsigned char *at, size_t bytes)
{
    return plain(sum, at, bytes);
}

#endif

uint32_t cste_crc32c(const void *data, size_t bytes)
{
    (void)pthread_once(&once, make_tables);
    return ~(has_instruction ? by_instruction(~0u, data, bytes) : plain(~0u, data, bytes));
}

uint32_t cste_crc32c_ref(const void *data, size_t bytes)
{
    (void)pthread_once(&once, make_tables);
    return ~plain(~0u, data, bytes);
}
