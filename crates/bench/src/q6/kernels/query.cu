// Query 6 in one pass: each thread filters, multiplies and adds rows in its registers.
#include "groups.cuh"

// Vectors of each column that a thread has in flight.
constexpr u32 kVectors = kColumnVectors / kThreads;
static_assert(kVectors * kThreads == kColumnVectors, "the threads of a block share a row group evenly");

__device__ inline const Values* values(const Groups& groups) { return reinterpret_cast<const Values*>(groups.words); }

// Loads this thread's share of a column.
__device__ inline void load(const Values* column, Values (&into)[kVectors]) {
#pragma unroll
    for (u32 v = 0; v < kVectors; v++) into[v] = load_once(column + v * kThreads + threadIdx.x);
}

// Returns the sum over this thread's rows of a group.
__device__ inline u64 sum_of(const Values* group) {
    Values ship_date[kVectors], discount[kVectors], quantity[kVectors], price[kVectors];
    load(group, ship_date);
    load(group + kColumnVectors, discount);
    load(group + 2 * kColumnVectors, quantity);
    load(group + 3 * kColumnVectors, price);
    u64 sum = 0;
#pragma unroll
    for (u32 v = 0; v < kVectors; v++) sum += products(ship_date[v], discount[v], quantity[v], price[v]);
    return sum;
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) query(const __grid_constant__ Groups groups) {
    u64 sum = 0;
    for (u64 group = blockIdx.x; group < groups.count; group += gridDim.x)
        sum += sum_of(values(groups) + group * kGroupVectors);
    add_of_block(groups.total, sum);
}

// Only reads: adds all words. Its rate is the limit that the query's rate is compared with.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) read_words(const __grid_constant__ Groups groups) {
    u64 sum = 0;
    for (u64 group = blockIdx.x; group < groups.count; group += gridDim.x) {
        Values read[kColumns][kVectors];
#pragma unroll
        for (u32 c = 0; c < kColumns; c++) load(values(groups) + group * kGroupVectors + c * kColumnVectors, read[c]);
#pragma unroll
        for (u32 c = 0; c < kColumns; c++)
#pragma unroll
            for (u32 v = 0; v < kVectors; v++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) sum += read[c][v].value[i];
    }
    add_of_block(groups.total, sum);
}
