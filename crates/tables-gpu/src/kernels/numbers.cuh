// Signed integers, and numbers of 64 bits that order as they do.
#pragma once
#include "arguments.cuh"

using i32 = int;
using i64 = long long;
using i128 = __int128;
using u128 = unsigned __int128;

__device__ inline i128 wide_constant(u64 low, u64 high) {
    return static_cast<i128>(static_cast<u128>(high) << 64 | low);
}
__device__ inline i128 of_halves(i64 upper, i64 lower) {
    return wide_constant(static_cast<u64>(lower), static_cast<u64>(upper));
}

// Returns the lowest bits of a number.
template <u32 kBits> __device__ inline i64 part_of(i128 number) {
    return static_cast<i64>(static_cast<u64>(number) & ((1ull << kBits) - 1));
}

// A number that orders as `value` does, above 0. A total of 0 is that of no row.
__device__ inline u64 ordered(i64 value) { return static_cast<u64>(value) ^ 1ull << 63; }
__device__ inline i64 plain(u64 ordered) { return static_cast<i64>(ordered ^ 1ull << 63); }

// Of two words that order as a decimal does, the first: neither 0 nor ~0, as decimals have at most 38 digits. The
// second is the lower half.
__device__ inline u64 ordered_high(i128 decimal) { return ordered(static_cast<i64>(decimal >> 64)); }

// Raises a maximum of two words, which no other thread changes.
__device__ inline void raise_words(u64& high, u64& low, u64 other_high, u64 other_low) {
    if (other_high < high || (other_high == high && other_low <= low)) return;
    high = other_high;
    low = other_low;
}

// An integer that orders as the bits of a float do, or these bits again.
__device__ inline i64 with_order(i64 bits) { return bits ^ static_cast<i64>(static_cast<u64>(bits >> 63) >> 1); }
__device__ inline i64 ordered_bits(double value) { return with_order(__double_as_longlong(value)); }
__device__ inline double float_of(i64 ordered) { return __longlong_as_double(with_order(ordered)); }
__device__ inline double without_sign_of_zero(double value) { return value == 0 ? 0 : value; }

// Returns the float of 64 bits of an integer that orders as one of 32 bits does. Conversion would change a NaN.
__device__ inline double float_of_single(i64 ordered) {
    const u32 number = static_cast<u32>(ordered);
    const u32 bits = number ^ (ordered < 0 ? 0x7FFFFFFFu : 0u);
    if ((bits & 0x7FFFFFFF) <= 0x7F800000) return __uint_as_float(bits);
    const u64 nan = 0x7FF8000000000000ull | static_cast<u64>(bits & 0x7FFFFF) << 29;
    return __longlong_as_double(static_cast<i64>(nan | static_cast<u64>(bits & 0x80000000) << 32));
}

// Powers of ten that are floats, by their exponents.
constexpr u32 kPowers = 19;
constexpr double kPowerOfTen[kPowers] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8, 1e9,
                                         1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18};

// The parts of a float that are added, as `floats.rs` tells. Products with powers of two and what they leave behind
// the high and the middle part are exact, so that only the low part is rounded.
constexpr double kPartScale = 1ull << 41;
__device__ inline double behind_high(double value, double scale, i64 high) {
    return __fma_rn(static_cast<double>(high), -kPartScale, value * scale);
}
__device__ inline i64 low_part(double rest, i64 middle) {
    return __double2ll_rn((rest - static_cast<double>(middle)) * kPartScale);
}
__device__ inline bool is_too_small(double value, double least) { return value != 0 && fabs(value) < least; }

// Integers that order as sums of floats do, from their totals. Sums that are rounded to the same float have the same
// one, as the order of the result is that of the floats.
__device__ inline i128 order_of_decimals(i128 sum, double power) {
    return static_cast<i128>(floor(__ddiv_rn(static_cast<double>(sum), power) * power));
}
__device__ inline i128 order_of_floats(i128 high, i128 middle, i128 low) {
    constexpr u32 kBits = 41;
    constexpr i128 kMask = (static_cast<i128>(1) << kBits) - 1, kLarge = static_cast<i128>(1) << (127 - kBits);
    middle += low >> kBits;
    high += middle >> kBits;
    low &= kMask;
    const i128 both = high * (kMask + 1) + (middle & kMask);
    // As `floats.rs` rounds them.
    if (-kLarge < both && both < kLarge)
        return static_cast<i128>(floor(static_cast<double>(both * (kMask + 1) + low) / kPartScale));
    return static_cast<i128>(static_cast<double>(both | (low != 0 ? 1 : 0)));
}
