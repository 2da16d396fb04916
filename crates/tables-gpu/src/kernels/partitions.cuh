// Divides rows by the slices of the table of a join. The rows look up this table or are stored in it. Each row goes
// to the chunk of its slice, packed as before. So the kernel that uses the rows reads each row only for its slice.
//
// A chunk becomes one chunk for each slice, with the same reference and width. These chunks follow each other, and
// each begins at a group of rows. The first run of the kernel counts the rows of each slice, and the second run
// writes them.
#pragma once
#include "cancelled.cuh"
#include "joins.cuh"

// Rows of a group, which is packed in whole words.
constexpr u32 kGroupRows = 32 * kRows;
// Words of a unit. The host gives the begin of a column of a chunk in units.
constexpr u32 kUnitWords = 32;

template <u32 kStep>
__device__ inline u32 kept_by(const Fragment& f, Columns& columns, Joined (&joined)[kRows], u32 wanted);

// Returns the step that looks up the divided join; the number of steps if rows are stored in the divided table.
constexpr u32 step_of_division() {
    u32 step = 0;
    while (step < kSteps && kStepJoin[step] != kDividedJoin) step++;
    return step;
}

// Returns which rows of this thread are kept by the steps from `kStep` on that run before rows are divided.
template <u32 kStep>
__device__ inline u32 kept_before(const Fragment& f, Columns& columns, Joined (&joined)[kRows], u32 before) {
    if constexpr (kStep < kStepsBefore) {
        load<kStep>(columns, kStep == 0 || before != 0);
        const u32 kept = kept_by<kStep>(f, columns, joined, before);
        return kept_before<kStep + 1>(f, columns, joined, kept);
    } else {
        return before;
    }
}

// Loads the columns of the steps from `kStep` on, up to `kEnd`.
template <u32 kStep, u32 kEnd> __device__ inline void load_steps(Columns& columns, bool is_wanted) {
    if constexpr (kStep < kEnd) {
        load<kStep>(columns, is_wanted);
        load_steps<kStep + 1, kEnd>(columns, is_wanted);
    }
}

// Returns the slice that a row is stored in; `kNoSlot` if it is not stored.
template <class Stored>
__device__ inline u32 slice_of(const Fragment& f, Columns& columns, Joined& joined, u32 i, bool is_wanted) {
    Stored stored;
    stored.slice = kNoSlot;
    add(f, columns, joined, i, is_wanted, stored);
    return stored.slice;
}

// Writes the packed number of a row to a column. Its bits must be 0 before.
__device__ inline void put_number(u32* column, u32 row, u32 width, u64 number) {
    const u32 bit = row % kGroupRows / 32 * width, shift = bit % 32;
    u32* word = column + static_cast<u64>(row / kGroupRows) * kRows * width + bit / 32 * kLineWords + row % 32;
    const u64 low = number << shift;
    const u32 high = shift == 0 ? 0 : static_cast<u32>(number >> (64 - shift));
    const u32 words[3] = {static_cast<u32>(low), static_cast<u32>(low >> 32), high};
#pragma unroll
    for (u32 w = 0; w < 3; w++)
        if (words[w] != 0) atomicOr(word + w * kLineWords, words[w]);
}

// Writes the columns from `kColumn` on of the kept rows of this thread, as the rows `to` of their chunk. `where` has
// two units for each column: where its numbers begin, and where the bits begin that tell which rows have a value.
template <u32 kColumn>
__device__ inline void write_columns(
    const Fragment& f, Columns& columns, const u32* where, u32 kept, const u32 (&to)[kRows]) {
    if constexpr (kColumn < kColumns) {
        auto& cursor = cursor_of<kColumn>(columns);
        // Columns are loaded one after the other, as all together may need more registers than a thread has.
        if constexpr (kColumn >= kColumnsBefore) cursor.load(kept != 0);
        u32* numbers = f.seen + static_cast<u64>(where[2 * kColumn]) * kUnitWords;
        u32* valid = f.seen + static_cast<u64>(where[2 * kColumn + 1]) * kUnitWords;
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            if ((kept >> i & 1) == 0) continue;
            put_number(numbers, to[i], cursor.width(), cursor.wide(i, true));
            if (cursor.valid != nullptr && cursor.has_value(i, true)) atomicOr(valid + to[i] / 32, 1u << to[i] % 32);
        }
        write_columns<kColumn + 1>(f, columns, where, kept, to);
    }
}

// Divides the rows of a tile of a chunk, of which `rows` are left from this thread's first one on. All threads of the
// block must call this.
template <bool kIsDivided, u32 kStep>
__device__ inline void divide_tile(const Fragment& f, Columns& columns, u32 rows, u32 chunk) {
    if constexpr (kIsDivided) {
        // The values of joins that are not looked up are 0.
        Joined joined[kRows] = {};
        const u32 all = (1u << min(kRows, (rows + 31) / 32)) - 1;
        u32 kept = kept_before<0>(f, columns, joined, all);
        load_steps<kStepsBefore, kStep + 1>(columns, kept != 0);
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            if constexpr (kStep < kSteps) {
                keeps<kStep>(f, columns, joined[i], i, kept >> i & 1);
            } else {
                const u32 slice = slice_of<Totals>(f, columns, joined[i], i, kept >> i & 1);
                if (slice == kNoSlot)
                    kept &= ~(1u << i);
                else
                    joined[i].word[kSliceWord] = slice;
            }
        }
        // For each slice, the number of rows of this tile, and that of tiles that took their places before.
        const u32 slices = f.own_rows;
        u32* const counts = reinterpret_cast<u32*>(memory);
        u32* const firsts = counts + slices;
        for (u32 s = threadIdx.x; s < slices; s += kThreads) counts[s] = 0;
        __syncthreads();
        u32 to[kRows];
#pragma unroll
        for (u32 i = 0; i < kRows; i++)
            to[i] = (kept >> i & 1) != 0 ? atomicAdd(counts + joined[i].word[kSliceWord], 1u) : 0;
        __syncthreads();
        u32* const of_chunk = reinterpret_cast<u32*>(f.results) + static_cast<u64>(chunk) * slices;
        for (u32 s = threadIdx.x; s < slices; s += kThreads)
            firsts[s] = counts[s] == 0 ? 0 : atomicAdd(of_chunk + s, counts[s]);
        // The first run only counts.
        if (f.seen == nullptr) return;
        __syncthreads();
        // For each chunk, the first group of each slice, then two units for each column.
        const u32* const where = f.tables + f.groups + static_cast<u64>(chunk) * (slices + 2 * kColumns);
#pragma unroll
        for (u32 i = 0; i < kRows; i++) {
            const u32 slice = joined[i].word[kSliceWord];
            to[i] += where[slice] * kGroupRows + firsts[slice];
        }
        write_columns<0>(f, columns, where + slices, kept, to);
    }
}
