// The loop of a fragment over tiles of rows. `keeps` and `add` are generated from the plan.
#pragma once
#include "cancelled.cuh"
#include "partitions.cuh"

// Whether each tile begins with a look at the flag. Kernels that set it themselves may have much useless work left:
// the table of groups is full, or joins have too many matches. If rows are divided, the threads of a block wait for
// each other in each tile.
constexpr bool kLooksAlways = kIsDividing || Totals::kMayBeFull || has_repeating();

// Bits of a row, of which a column whose width is not known has as many as a narrow number.
constexpr u32 bits_of_row() {
    u32 bits = 1;
    for (u32 c = 0; c < kColumns; c++) bits += kWidths[c] <= 64 ? kWidths[c] : 32;
    return bits;
}

// Returns the number of tiles from one look at the flag to the next: those of a mebibyte, which all blocks read from
// pinned memory of the host in some ten milliseconds, and fewer if rows are looked up. A power of two.
constexpr u32 tiles_unchecked() {
    u32 tiles = 1;
    while (2 * tiles * (1 + kJoins) <= 64 && 2 * tiles * bits_of_row() <= 4096) tiles *= 2;
    return tiles;
}
constexpr u32 kTilesUnchecked = kLooksAlways ? 1 : tiles_unchecked();

// Matches after which a thread adds its own to those of all.
constexpr u32 kMatchesCounted = 256;

// Counts matches. Returns whether the kernel goes on.
__device__ inline bool may_go_on(const Fragment& f, Columns& columns, u32 matches) {
    columns.matches += matches;
    columns.turns++;
    if (columns.turns > kTurnsMax) atomicMax(f.flag, kHasManyMatches);
    if (columns.matches < kMatchesCounted && columns.turns % kMatchesCounted != 0) return columns.turns <= kTurnsMax;
    const u64 before = atomicAdd(reinterpret_cast<u64*>(f.flag) + 1, static_cast<u64>(columns.matches));
    columns.matches = 0;
    if (before > kMatchesMax) atomicMax(f.flag, kHasManyMatches);
    return load_relaxed(f.flag) == 0;
}

// Adds rows of this thread.
__device__ inline void add_rows(const Fragment& f, Columns& columns, Joined (&joined)[kRows], u32 kept, Totals& totals) {
    if constexpr (kColumns > kCursors) {
        // Not unrolled, as the code of a wide row is long.
#pragma unroll 1
        for (u32 i = 0; i < kRows; i++) {
            Joined of_row = joined[0];
#pragma unroll
            for (u32 k = 1; k < kRows; k++)
                if (k == i) of_row = joined[k];
            add(f, columns, of_row, i, kept >> i & 1, totals);
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < kRows; i++) add(f, columns, joined[i], i, kept >> i & 1, totals);
}

// Returns which rows of this thread a step keeps, of those that it wants.
template <u32 kStep>
__device__ inline u32 kept_by(const Fragment& f, Columns& columns, Joined (&joined)[kRows], u32 wanted) {
    u32 kept = 0;
#pragma unroll
    for (u32 i = 0; i < kRows; i++) {
        const bool is_wanted = kStep == 0 || (wanted >> i & 1);
        kept |= static_cast<u32>(keeps<kStep>(f, columns, joined[i], i, is_wanted)) << i;
    }
    return kept & wanted;
}

// Returns which rows of this thread an outer join with a condition keeps in this turn: those whose match meets the
// condition, and those at their last match if none has met it. `more` are the rows with further matches. `matched`
// are the rows with a match that has met the condition; this adds those of the turn.
template <u32 kJoin>
__device__ inline u32 matched_or_last(const Joined (&joined)[kRows], u32 more, u32& matched) {
    u32 now = 0;
#pragma unroll
    for (u32 i = 0; i < kRows; i++) now |= static_cast<u32>(is_matched<kJoin>(joined[i])) << i;
    matched |= now;
    return now | ~(more | matched);
}

// Returns which rows of this thread have a match that meets the condition of a semi, anti or mark join, of those that
// the steps before kept. Stops at the first match of each row. If the kernel ends, leaves out the rows of `before` with
// matches that were not tested.
template <u32 kStep>
__device__ inline u32 with_match(const Fragment& f, Columns& columns, Joined (&joined)[kRows], u32& before) {
    constexpr u32 kJoin = kStepJoin[kStep];
#pragma unroll
    for (u32 i = 0; i < kRows; i++) joined[i].word[kPlaceWord<kJoin>] = 0;
    u32 matched = 0;
    for (u32 wanted = before; wanted != 0;) {
        matched |= kept_by<kStep>(f, columns, joined, wanted);
        u32 more = 0;
#pragma unroll
        for (u32 i = 0; i < kRows; i++) more |= static_cast<u32>(joined[i].word[kNextWord<kJoin>] != 0) << i;
        more &= wanted & ~matched;
        const bool goes_on = may_go_on(f, columns, __popc(wanted));
        if (!goes_on) before &= ~more;
        wanted = goes_on ? more : 0;
    }
    return matched;
}

// Returns which rows of this thread a semi, anti or mark join keeps, of those that the steps before kept. If tables
// are made in slices, the step before has kept the rows of this one, which has all other rows with their keys.
template <u32 kStep>
__device__ inline u32 kept_by_search(const Fragment& f, Columns& columns, Joined (&joined)[kRows], u32 before) {
    constexpr u32 kJoin = kStepJoin[kStep];
    const u32 matched = with_match<kStep>(f, columns, joined, before);
    if constexpr (kSearch<kJoin> == Search::kSemi) return matched;
    if constexpr (kSearch<kJoin> == Search::kAnti) return before & ~matched;
#pragma unroll
    for (u32 i = 0; i < kRows; i++) set_matched<kJoin>(joined[i], matched >> i & 1);
    return before;
}

// Adds the rows of this thread that a step and those behind it keep, of those that the steps before kept. All rows are
// tested before the first is added, so that the reads of several rows are in flight at once. To branch around rows that
// no lane of the warp keeps took longer on an H200, also for query 6 of TPC-H.
template <u32 kStep>
__device__ inline void add_kept(
    const Fragment& f, Columns& columns, Joined (&joined)[kRows], u32 before, Totals& totals) {
    // The first step reads columns also behind the rows.
    load<kStep>(columns, kStep == 0 || before != 0);
    if constexpr (kStep == kSteps) {
        add_rows(f, columns, joined, before, totals);
    } else if constexpr (!is_repeating(kStep)) {
        const u32 kept = kept_by<kStep>(f, columns, joined, before);
        add_kept<kStep + 1>(f, columns, joined, kept, totals);
    } else if constexpr (kSearch<kStepJoin[kStep]> != Search::kNone) {
        const u32 kept = kept_by_search<kStep>(f, columns, joined, before);
        add_kept<kStep + 1>(f, columns, joined, kept, totals);
    } else {
        constexpr u32 kJoin = kStepJoin[kStep];
#pragma unroll
        for (u32 i = 0; i < kRows; i++) joined[i].word[kPlaceWord<kJoin>] = 0;
        u32 matched = 0;
        // Each time, the next match of each row that has one.
        for (u32 wanted = before; wanted != 0;) {
            u32 kept = kept_by<kStep>(f, columns, joined, wanted);
            u32 found = 0, more = 0;
#pragma unroll
            for (u32 i = 0; i < kRows; i++) {
                found |= static_cast<u32>(joined[i].word[kPlaceWord<kJoin>] != 0) << i;
                more |= static_cast<u32>(joined[i].word[kNextWord<kJoin>] != 0) << i;
            }
            more &= wanted;
            if constexpr (kHasCondition<kJoin>) kept &= matched_or_last<kJoin>(joined, more, matched);
            add_kept<kStep + 1>(f, columns, joined, kept, totals);
            // A row is looked up in each slice, and has matches in one.
            wanted = may_go_on(f, columns, __popc(kIsSliced ? wanted & found : wanted)) ? more : 0;
        }
    }
}

// Returns whether the kernel must end at a tile. If rows are divided, all threads of a block get the same answer.
__device__ inline bool ends_at_tile(const Fragment& f) {
    if constexpr (kIsDividing) return block_must_end(f);
    return kLooksAlways ? must_end(f) : is_cancelled(f);
}

// Adds the rows of a tile, of which `rows` are left from this thread's first one on.
__device__ inline void add_tile(const Fragment& f, Columns& columns, u32 rows, Totals& totals) {
    Joined joined[kRows];
    const u32 all = (1u << min(kRows, (rows + 31) / 32)) - 1;
    add_kept<0>(f, columns, joined, all, totals);
}

// Returns the chunk of a tile.
__device__ inline u32 chunk_of(const Fragment& f, u64 tile) {
    u32 low = 0, high = static_cast<u32>(f.chunk_count);
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        (f.chunks[middle].first_tile <= tile ? low : high) = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) fragment(const __grid_constant__ Fragment f) {
    Totals totals;
    totals.start(f);
    // A block reads tiles that follow each other, so that it seldom changes the chunk.
    const u64 begin = f.tiles * blockIdx.x / gridDim.x, end = f.tiles * (blockIdx.x + 1ull) / gridDim.x;
    u32 chunk = chunk_of(f, begin);
    u32 matches = 0, turns = 0;
    // All threads leave the loops for `finish`, where they wait for each other. A kernel behind one that has ended
    // early reads no tile.
    for (u64 tile = !kLooksAlways && is_cancelled(f) ? end : begin; tile < end; chunk++) {
        Columns columns;
        columns.matches = matches;
        columns.turns = turns;
        const Chunk& of = f.chunks[chunk];
#pragma unroll
        for (u32 t = 0; t < kKeptTables; t++) columns.table[t] = f.tables + f.table_offsets[of.file * kTables + t];
        columns.offsets = f.table_offsets + of.file * kTables;
        const u32 rows = of.rows, of_chunk = static_cast<u32>(tile - of.first_tile);
        const u64 last = min(end, f.chunks[chunk + 1].first_tile);
        columns.parts = f.parts + of.file * kColumns;
        columns.chunk = of.index;
        columns.tile = of_chunk;
        each_cursor<0>(columns, [&](auto& cursor, u32 c) { cursor.start(columns.parts[c][of.index], of_chunk); });
        u32 first = of_chunk * (kThreads * kRows) + threadIdx.x / 32 * (32 * kRows) + threadIdx.x % 32;
        for (; tile < last; tile++) {
            if (tile % kTilesUnchecked == 0 && ends_at_tile(f)) {
                tile = end;
                break;
            }
            if (kTilesAhead > 0 && tile + kTilesAhead < last)
                each_cursor<0>(columns, [](auto& cursor, u32) { cursor.prefetch(); });
            columns.place = static_cast<u64>(of.file) << 40 | static_cast<u64>(of.index) << 18 | first;
            const u32 left = first < rows ? rows - first : 0;
            if constexpr (kIsDividing)
                divide_tile<kIsDividing, step_of_division()>(f, columns, left, chunk);
            else
                add_tile(f, columns, left, totals);
            first += kThreads * kRows;
            columns.tile++;
            each_cursor<0>(columns, [](auto& cursor, u32) { cursor.advance(); });
        }
        matches = columns.matches;
        turns = columns.turns;
    }
    totals.finish(f);
}
