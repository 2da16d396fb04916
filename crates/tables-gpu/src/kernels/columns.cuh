// Reads packed columns.
#pragma once
#include "numbers.cuh"

// Rows of a tile for each thread. Row `i` of a thread is `i` times 32 rows behind its first.
constexpr u32 kRows = 8;
// Words of a line of the cache, and from one word of a thread to the next.
constexpr u32 kLineWords = 32;

// Where a thread reads a column of a tile: its rows are packed in `width / 4` words. If the compiler knows the width,
// these are loaded once for all rows; otherwise (`kWidth` is more than 64) words are read for each row.
template <u32 kWidth, bool kIsFloat> struct Cursor {
    static constexpr bool kIsKnown = kWidth <= 64;
    static constexpr u32 kWords = kIsKnown ? kWidth / 4 : 0;

    const u32* word;
    const u32* valid;
    i64 reference;
    u32 bits;
    // Of floats, the power of ten that divides numbers, 0 if numbers are bits; and its inverse.
    double power, inverse;
    // A line of the tile that is prefetched next; null if this thread prefetches none.
    const u32* ahead;
    u32 loaded[kWords > 0 ? kWords : 1];

    __device__ u32 width() const { return kIsKnown ? kWidth : bits; }
    __device__ u32 tile_words() const { return kThreads / 32 * kRows * width(); }

    __device__ void start(const Part& part, u32 tile) {
        bits = part.width;
        reference = part.reference;
        if constexpr (kIsFloat) {
            power = part.exponent < kPowers ? kPowerOfTen[part.exponent] : 0;
            inverse = 1 / power;
        }
        const u32 warp = threadIdx.x / 32;
        word = part.words + static_cast<u64>(tile) * tile_words() + warp * kRows * width() + threadIdx.x % 32;
        valid = part.valid == nullptr ? nullptr : part.valid + (tile * (kThreads / 32) + warp) * kRows;
        const u32 line = threadIdx.x * kLineWords;
        ahead = line < tile_words() ? part.words + static_cast<u64>(tile) * tile_words() + line : nullptr;
    }

    // Brings the part of a tile that is `kTilesAhead` behind this one to the cache.
    __device__ void prefetch() const {
        if (ahead != nullptr) prefetch_line(ahead + kTilesAhead * tile_words());
    }

    // Goes to the next tile.
    __device__ void advance() {
        word += tile_words();
        if (valid != nullptr) valid += kThreads / 32 * kRows;
        if (ahead != nullptr) ahead += tile_words();
    }

    // Loads the words of all rows of this thread, unless none is wanted.
    __device__ void load(bool is_wanted) {
#pragma unroll
        for (u32 w = 0; w < kWords; w++) loaded[w] = read_word_once(word + w * kLineWords, is_wanted);
    }

    // Returns word `w` of the rows of this thread; 0 if it is not wanted.
    __device__ u32 read(u32 w, bool is_wanted) const {
        if constexpr (kIsKnown) return w < kWords ? loaded[w] : 0;
        return read_word(word + w * kLineWords, is_wanted && w < bits / 4);
    }

    // Returns the packed number, of at most 32 bits, of row `i`; a number of the column if it is not wanted.
    __device__ u32 narrow(u32 i, bool is_wanted) const {
        const u32 bit = i * width();
        const u64 mask = (1ull << width()) - 1;
        if (kIsKnown && bit % 32 + width() <= 32) return read(bit / 32, is_wanted) >> bit % 32 & static_cast<u32>(mask);
        const u32 low = read(bit / 32, is_wanted), high = read(bit / 32 + 1, is_wanted);
        return __funnelshift_r(low, high, bit) & static_cast<u32>(mask);
    }

    // As `narrow`, for packed numbers of up to 64 bits.
    __device__ u64 wide(u32 i, bool is_wanted) const {
        const u32 bit = i * width(), w = bit / 32;
        const u32 words[3] = {read(w, is_wanted), read(w + 1, is_wanted), read(w + 2, is_wanted)};
        const u32 low = __funnelshift_r(words[0], words[1], bit), high = __funnelshift_r(words[1], words[2], bit);
        const u64 mask = width() == 0 ? 0 : ~0ull >> (64 - width());
        return (low | static_cast<u64>(high) << 32) & mask;
    }

    // Returns the integer of a decimal with a larger exponent than that of the chunk, or the same.
    template <u32 kExponent> __device__ i64 integer(i64 number) const {
        return number * static_cast<i64>(kPowerOfTen[kExponent] / power);
    }

    // Returns the float of a number, the reference added. The quotient is rounded as `floats.rs` does.
    template <bool kIsSingle> __device__ double decoded(i64 number) const {
        if (power == 0) return kIsSingle ? float_of_single(number) : float_of(number);
        const double dividend = static_cast<double>(number), quotient = dividend * inverse;
        const double rounded = __fma_rn(__fma_rn(-quotient, power, dividend), inverse, quotient);
        return kIsSingle ? static_cast<double>(static_cast<float>(rounded)) : rounded;
    }

    // Returns whether row `i` has a value.
    __device__ bool has_value(u32 i, bool is_wanted) const {
        if (valid == nullptr) return true;
        return read_word(valid + i, is_wanted) >> threadIdx.x % 32 & 1;
    }
};

// The cursors of the columns from one on.
template <u32 kColumn> struct CursorsFrom : CursorsFrom<kColumn + 1> {
    Cursor<kWidths[kColumn], kIsFloat[kColumn]> cursor;
};
template <> struct CursorsFrom<kCursors> {};

// What a thread reads in a tile: the columns, and the tables of the file.
struct Columns : CursorsFrom<0> {
    const u32* table[kKeptTables > 0 ? kKeptTables : 1];
    // Where this thread's first row is in the table: its file, the chunk, and the row.
    u64 place;
    // Where columns and tables without room in registers are looked up: those of the file, the chunk, the tile in it.
    const Part* const* parts;
    const u32* offsets;
    u32 chunk, tile;
    // Matches of joins that repeat rows, since the last were counted; and how often the thread went to the next ones.
    u32 matches, turns;
};

template <u32 kColumn> __device__ inline auto& cursor_of(Columns& columns) {
    return static_cast<CursorsFrom<kColumn>&>(columns).cursor;
}
template <u32 kColumn> __device__ inline const auto& cursor_of(const Columns& columns) {
    return static_cast<const CursorsFrom<kColumn>&>(columns).cursor;
}
// Returns a cursor that is made for one row, and not kept in registers.
template <u32 kColumn> __device__ inline auto found_cursor(const Columns& columns) {
    Cursor<kWidthsDiffer, kIsFloat[kColumn]> cursor;
    cursor.start(columns.parts[kColumn][columns.chunk], columns.tile);
    return cursor;
}

template <u32 kTable> __device__ inline const u32* table_of(const Fragment& f, const Columns& columns) {
    if constexpr (kTable < kKeptTables) return columns.table[kTable];
    return f.tables + columns.offsets[kTable];
}

// Calls a function for each cursor with the number of its column.
template <u32 kColumn, class Function> __device__ inline void each_cursor(Columns& columns, const Function& function) {
    if constexpr (kColumn < kCursors) {
        function(cursor_of<kColumn>(columns), kColumn);
        each_cursor<kColumn + 1>(columns, function);
    }
}
