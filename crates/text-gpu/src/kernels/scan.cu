// The entries: one for each way of matching, once for counts alone and once for lists of rows.
#include "bits.cuh"
#include "dfa.cuh"
#include "literal.cuh"

// Blocks that a multiprocessor should have room for; this keeps the compiler from spilling for the sake of more.
constexpr u32 kBlocks = 4;

#define SCAN(name, ...)                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)                                           \
        name##_count(const __grid_constant__ ScanArguments arguments) {                              \
        scan<__VA_ARGS__, false>(arguments);                                                         \
    }                                                                                                \
    extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)                                           \
        name##_list(const __grid_constant__ ScanArguments arguments) {                               \
        scan<__VA_ARGS__, true>(arguments);                                                          \
    }

SCAN(scan_dfa, Dfa<u8, 1, true>)
SCAN(scan_dfa_4, Dfa<u8, 4, true>)
SCAN(scan_dfa_8, Dfa<u8, 8, true>)
SCAN(scan_dfa_wide, Dfa<u16, 1, true>)
SCAN(scan_dfa_large, Dfa<u16, 1, false>)
SCAN(scan_literal, Literal<false>)
SCAN(scan_literal_start, Literal<true>)
SCAN(scan_glushkov, Glushkov)
SCAN(scan_shift_and, ShiftAnd)
