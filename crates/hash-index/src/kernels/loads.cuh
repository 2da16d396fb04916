// Reads of columns. A compiler that is free to do so moves the read of a payload into the branch in which a row is
// inserted; then the lanes of a warp read one after another, and from host memory each waits for the bus.
#pragma once
#include "device.cuh"

// Reads 16 bytes of a column, which no thread reads again: they leave the caches first.
__device__ inline void load_vector(const u64* from, u64* to) {
    asm volatile("ld.global.cs.v2.u64 {%0, %1}, [%2];" : "=l"(to[0]), "=l"(to[1]) : "l"(from));
}
__device__ inline void load_vector(const u32* from, u32* to) {
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
}
