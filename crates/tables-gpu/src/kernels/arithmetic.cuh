// Division of integers, as `arithmetic.rs` writes it, and lists of numbers, as `in_list.rs` does.
#pragma once
#include "numbers.cuh"

// What is computed of two numbers: the quotient, rounded towards zero, down, up, or to the nearest, of two the one
// farther from zero; or what is left by the quotient that is rounded towards zero.
enum Division : u32 { kTowardsZero, kDown, kUp, kNearest, kRest };

// The divisor is 0 only in rows that do not count. That of `kDown`, `kUp` and `kNearest` is even and larger than 0.
template <class Number> __device__ inline Number computed(Division of, Number number, Number divisor) {
    // The quotient of the smallest number and -1 has no room.
    if (divisor == 0 || (of == kRest && divisor == -1)) return 0;
    const Number quotient = number / divisor, rest = number - quotient * divisor;
    if (of == kRest) return rest;
    if (of == kDown) return quotient - (rest < 0 ? 1 : 0);
    if (of == kUp) return quotient + (rest > 0 ? 1 : 0);
    if (of == kNearest) return quotient + (rest >= divisor / 2 ? 1 : 0) - (rest <= -(divisor / 2) ? 1 : 0);
    return quotient;
}

// The code of 128 bits is long, so that all divisions share it. PERF: for a kernel of four quotients that are rounded
// twice, and `sm_90`, NVRTC 13.0 took 9 to 11 s if they shared the quotient alone, and 0.5 s with this function.
__device__ __attribute__((noinline)) i128 computed_wide(Division of, i128 number, i128 divisor) {
    return computed(of, number, divisor);
}

template <Division kOf, class Number> __device__ inline Number divided(Number number, Number divisor) {
    if constexpr (sizeof(Number) > sizeof(i64)) return computed_wide(kOf, number, divisor);
    return computed(kOf, number, divisor);
}

// Returns a number of a list: a word, or two, the lower first.
template <class Number> __device__ inline Number listed(const u32* list, u32 index, bool is_wanted) {
    if constexpr (sizeof(Number) == sizeof(u32)) return static_cast<Number>(read_word(list + index, is_wanted));
    const u64 low = read_word(list + 2 * index, is_wanted), high = read_word(list + 2 * index + 1, is_wanted);
    return static_cast<Number>(high << 32 | low);
}

// Returns whether a sorted list has a number.
template <class Number>
__device__ inline bool is_in_list(const u32* list, u32 count, Number number, bool is_wanted) {
    // The last number that is not larger, if there is one, is among `left` numbers.
    u32 first = 0;
    for (u32 left = count; left > 1;) {
        const u32 half = left / 2;
        if (listed<Number>(list, first + half, is_wanted) <= number) first += half;
        left -= half;
    }
    return count > 0 && listed<Number>(list, first, is_wanted) == number;
}
