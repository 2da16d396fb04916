// Division of integers, as `arithmetic.rs` writes it, and lists of numbers, as `in_list.rs` does.
#pragma once
#include "numbers.cuh"

// Returns the quotient, rounded towards zero. The code of 128 bits is long. For a kernel of six quotients and their
// roundings and `sm_80`, NVRTC 13.0 took 4.4 s if they were inline, and otherwise 0.5 s.
template <class Number> __device__ inline Number divided(Number number, Number divisor) { return number / divisor; }
template <> __device__ __attribute__((noinline)) i128 divided(i128 number, i128 divisor) {
    return number / divisor;
}

// Returns the same. The divisor is 0 only in rows that do not count.
template <class Number> __device__ inline Number quotient_of(Number number, Number divisor) {
    return divisor == 0 ? 0 : divided(number, divisor);
}

// Returns what that quotient leaves. The quotient of the smallest number and -1 has no room.
template <class Number> __device__ inline Number remainder_of(Number number, Number divisor) {
    return divisor == 0 || divisor == -1 ? 0 : number - divisor * divided(number, divisor);
}

// Returns how many steps there are in a number, rounded towards zero, down, up, or to the nearest, of two the one
// farther from zero. The step is even and larger than 0.
template <class Number> __device__ inline Number whole_steps(Number number, Number step) {
    return divided(number, step);
}
template <class Number> __device__ inline Number steps_below(Number number, Number step) {
    const Number steps = divided(number, step);
    return steps - (steps * step > number ? 1 : 0);
}
template <class Number> __device__ inline Number steps_above(Number number, Number step) {
    const Number steps = divided(number, step);
    return steps + (steps * step < number ? 1 : 0);
}
template <class Number> __device__ inline Number nearest_steps(Number number, Number step) {
    const Number steps = divided(number, step), rest = number - steps * step;
    return steps + (rest >= step / 2 ? 1 : 0) - (rest <= -(step / 2) ? 1 : 0);
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
