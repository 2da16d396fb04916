// Iterates over the tiles of a table's chunks.
//
// A tile is 32 rows of the same number of 8-byte words, interleaved: word w of row r has index w * 32 + r, so a warp
// reads 256 contiguous bytes per step and its lanes finish together (Sitaridi and Ross, "GPU-accelerated string
// matching for database applications", VLDB Journal 2016). Bytes after a value are 0xFF, which UTF-8 never contains.
#pragma once

#include "report.cuh"

// Copies the image, the tables used for every row, to the start of shared memory.
__device__ inline const u8* load_image(const Scan& scan) {
    extern __shared__ uint4 shared_image[];
    const uint4* image = reinterpret_cast<const uint4*>(scan.image);
    for (u32 index = threadIdx.x; index < scan.image_bytes / 16; index += blockDim.x) shared_image[index] = image[index];
    __syncthreads();
    return reinterpret_cast<const u8*>(shared_image);
}

// Returns in `words` the `kCount` words of a row from index `first` on. Words from index `read` on are padding.
template <u32 kCount>
__device__ void load_words(u64 (&words)[kCount], const Row& row, u32 first, u32 read) {
#pragma unroll
    for (u32 index = 0; index < kCount; ++index)
        words[index] = first + index < read ? __ldcs(row.first + (first + index) * kLanes) : kPadding;
}

template <Matcher M, bool kList>
__device__ void report_tile(const M& matcher, Report<M, kList>& report, const typename M::State& state, const Chunk& chunk,
                            u32 row) {
    if (!any_lane(matcher.matches_any(state))) return;
#pragma unroll(M::kQueriesUnrolled)
    for (u32 query = 0; query < M::kQueries; ++query)
        if (M::kQueries == 1 || query < report.scan.query_count)
            report.add(query, row < chunk.rows && matcher.matches(state, query), chunk, row);
}

// Scans a tile whose rows have several words each, one row per lane. The next words are loaded while the current ones
// are matched.
template <Matcher M, bool kList>
__device__ void scan_tile(const M& matcher, Report<M, kList>& report, const Chunk& chunk, u32 tile) {
    constexpr u32 kAhead = M::kWordsAhead;
    const u32 row = tile * kLanes + this_lane();
    const u64* tile_words = chunk.words + static_cast<u64>(tile) * chunk.words_per_row * kLanes;
    const Row words{tile_words + this_lane(), chunk.words_per_row};
    const u32 read = M::kFirstWordOnly ? min(words.words, 1u) : words.words;
    typename M::State state;
    matcher.begin(state);
    u64 ahead[kAhead];
    load_words(ahead, words, 0, read);
    for (u32 first = 0; first < read; first += kAhead) {
        u64 now[kAhead + 1];
#pragma unroll
        for (u32 index = 0; index < kAhead; ++index) now[index] = ahead[index];
        load_words(ahead, words, first + kAhead, read);
        now[kAhead] = ahead[0];
#pragma unroll
        for (u32 index = 0; index < kAhead; ++index)
            if (first + index < read) matcher.word(state, words, first + index, now[index], now[index + 1]);
        if (M::kEndsEarly && all_lanes(matcher.is_decided(state))) break;
    }
    matcher.end(state, words);
    report_tile(matcher, report, state, chunk, row);
}

// Scans several tiles of one-word rows together, so that enough memory reads are in flight.
template <Matcher M, bool kList>
__device__ void scan_short_tiles(const M& matcher, Report<M, kList>& report, const Chunk& chunk, u32 first_tile) {
    constexpr u32 kTiles = M::kShortTiles;
    const u32 first_row = first_tile * kLanes + this_lane(), step = kWarps * kLanes;
    u64 words[kTiles];
#pragma unroll
    for (u32 index = 0; index < kTiles; ++index) {
        const u32 row = first_row + index * step;
        words[index] = row < chunk.rows ? __ldcs(chunk.words + row) : kPadding;
    }
    typename M::State states[kTiles];
#pragma unroll
    for (u32 index = 0; index < kTiles; ++index) {
        const Row whole{chunk.words + first_row + index * step, 1};
        matcher.begin(states[index]);
        matcher.word(states[index], whole, 0, words[index], kPadding);
        matcher.end(states[index], whole);
    }
#pragma unroll
    for (u32 index = 0; index < kTiles; ++index)
        report_tile(matcher, report, states[index], chunk, first_row + index * step);
}

// Scans all chunks of the launch. The chunks are distributed round-robin over the blocks.
template <Matcher M, bool kList>
__device__ void scan_chunks(const Scan& scan, const typename M::Arguments& arguments) {
    const M matcher(arguments, load_image(scan));
    Report<M, kList> report(scan);
    const u32 warp = this_warp();
    for (u32 index = scan.chunk_begin + blockIdx.x; index < scan.chunk_end; index += gridDim.x) {
        if (report.is_enough()) break;
        const Chunk chunk = scan.chunks[index];
        const u32 tiles = (chunk.rows + kLanes - 1) / kLanes;
        if (chunk.words_per_row == 1) {
            for (u32 tile = warp; tile < tiles; tile += kWarps * M::kShortTiles)
                scan_short_tiles(matcher, report, chunk, tile);
        } else {
            for (u32 tile = warp; tile < tiles; tile += kWarps) scan_tile(matcher, report, chunk, tile);
        }
    }
    report.finish();
}
