// The loop of a fragment over tiles of rows. `keeps` and `add` are generated from the plan.
#pragma once

// Rows of a tile for each thread.
constexpr u32 kRows = 8;

// Adds the rows of a tile. This thread's first row is `first`. All rows are tested before the first is added, so that
// the reads of all are in flight at once. A row behind the last is read as the last, and left out.
__device__ inline void add_tile(const Fragment& f, const Columns& columns, u32 first, u32 rows, Totals& totals) {
    u32 kept = 0;
#pragma unroll
    for (u32 i = 0; i < kRows; i++) {
        const u32 row = first + i * blockDim.x;
        const bool is_kept = keeps(f, columns, min(row, rows - 1));
        kept |= static_cast<u32>(is_kept & (row < rows)) << i;
    }
#pragma unroll
    for (u32 i = 0; i < kRows; i++)
        if (kept >> i & 1) add(f, columns, first + i * blockDim.x, totals);
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
    totals.start(f.totals);
    // A block reads tiles that follow each other, so that it seldom changes the chunk.
    const u64 begin = f.tiles * blockIdx.x / gridDim.x, end = f.tiles * (blockIdx.x + 1ull) / gridDim.x;
    u32 chunk = chunk_of(f, begin);
    for (u64 tile = begin; tile < end;) {
        Columns columns;
#pragma unroll
        for (u32 c = 0; c < kColumns; c++) columns.part[c] = f.parts[chunk * kColumns + c];
#pragma unroll
        for (u32 t = 0; t < kTables; t++) columns.table[t] = f.tables + f.table_offsets[chunk * kTables + t];
        const u32 rows = f.chunks[chunk].rows;
        const u64 first_tile = f.chunks[chunk].first_tile, last = min(end, f.chunks[chunk + 1].first_tile);
        for (; tile < last; tile++)
            add_tile(f, columns, static_cast<u32>(tile - first_tile) * (blockDim.x * kRows) + threadIdx.x, rows, totals);
        chunk++;
    }
    totals.finish(f.totals);
}
