// Reads packed columns.
#pragma once
#include "arguments.cuh"

using i32 = int;
using i64 = long long;
using i128 = __int128;

// Rows of a tile for each thread.
constexpr u32 kRows = 8;
// Words of a line of the cache.
constexpr u32 kLineWords = 32;

// Where a thread reads a column of a tile. Its rows are a block's threads apart, which is a multiple of 32, so that the
// packed number of each begins at the same bit of a word.
struct Cursor {
    const u32* word;
    const u32* valid;
    i64 reference;
    u64 mask;
    u32 shift;
    // Words from one row of the thread to the next.
    u32 step;
    // A line of the tile that is prefetched next; null if this thread prefetches none.
    const u32* ahead;

    // The same for a width that the compiler knows.
    template <u32 kWidth> __device__ const u32* word_of(u32 i) const {
        return word + i * (kWidth <= 64 ? kThreads / 32 * kWidth : step);
    }
    template <u32 kWidth> __device__ u64 mask_of() const {
        return kWidth == 0 ? 0 : kWidth <= 64 ? ~0ull >> (64 - kWidth) % 64 : mask;
    }

    // `first` is the thread's first row.
    __device__ void start(const Part& part, u32 first) {
        const u32 bit = first * part.width;
        word = part.words + bit / 32;
        shift = bit % 32;
        step = kThreads / 32 * part.width;
        mask = part.mask;
        reference = part.reference;
        valid = part.valid == nullptr ? nullptr : part.valid + first / 32;
        const u32 tile_words = step * kRows, line = threadIdx.x * kLineWords;
        ahead = line < tile_words ? part.words + first / (kThreads * kRows) * tile_words + line : nullptr;
    }

    // Brings the part of a tile that is `kTilesAhead` behind this one to the cache.
    __device__ void prefetch() const {
        if (ahead != nullptr) prefetch_line(ahead + kTilesAhead * kRows * step);
    }

    // Goes to the next tile.
    __device__ void advance() {
        word += step * kRows;
        if (valid != nullptr) valid += kThreads / 32 * kRows;
        if (ahead != nullptr) ahead += step * kRows;
    }
};

// What a thread reads in a tile: the columns, and the tables of the file.
struct Columns {
    Cursor cursor[kColumns > 0 ? kColumns : 1];
    const u32* table[kTables > 0 ? kTables : 1];
};

// Returns the packed number, of at most 32 bits, of row `i` of this thread; any number if it is not wanted. Words
// behind those of the last row can be read.
template <u32 kWidth> __device__ inline u32 read_narrow(const Cursor& cursor, u32 i, bool is_wanted) {
    const u32* word = cursor.word_of<kWidth>(i);
    u32 low = read_word(word, is_wanted), high = read_word(word + 1, is_wanted);
    return __funnelshift_r(low, high, cursor.shift) & static_cast<u32>(cursor.mask_of<kWidth>());
}

// As `read_narrow`, for packed numbers of up to 64 bits.
template <u32 kWidth> __device__ inline u64 read_wide(const Cursor& cursor, u32 i, bool is_wanted) {
    const u32* word = cursor.word_of<kWidth>(i);
    u32 words[3] = {read_word(word, is_wanted), read_word(word + 1, is_wanted), read_word(word + 2, is_wanted)};
    u32 low = __funnelshift_r(words[0], words[1], cursor.shift);
    u32 high = __funnelshift_r(words[1], words[2], cursor.shift);
    return (low | static_cast<u64>(high) << 32) & cursor.mask_of<kWidth>();
}

// Returns whether row `i` of this thread has a value.
__device__ inline bool has_value(const Cursor& cursor, u32 i, bool is_wanted) {
    if (cursor.valid == nullptr) return true;
    return read_word(cursor.valid + i * (kThreads / 32), is_wanted) >> threadIdx.x % 32 & 1;
}

__device__ inline i128 wide_constant(u64 low, u64 high) {
    return static_cast<i128>(static_cast<unsigned __int128>(high) << 64 | low);
}
