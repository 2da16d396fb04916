// Kernel entries: for each matcher one that counts, and one that also lists rows.
#include "bits.cuh"
#include "dfa.cuh"
#include "literal.cuh"

#define SCAN(name, parameter, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)                                                  \
        name##_count(const __grid_constant__ parameter arguments) {                                                  \
        scan_chunks<__VA_ARGS__, false>(arguments.scan, arguments.matcher);                                          \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)                                                  \
        name##_list(const __grid_constant__ parameter arguments) {                                                   \
        scan_chunks<__VA_ARGS__, true>(arguments.scan, arguments.matcher);                                           \
    }

SCAN(scan_dfa, DfaScan, Dfa<u8, 1, true>)
SCAN(scan_dfa_4, DfaScan, Dfa<u8, 4, true>)
SCAN(scan_dfa_8, DfaScan, Dfa<u8, 8, true>)
SCAN(scan_dfa_wide, DfaScan, Dfa<u16, 1, true>)
SCAN(scan_dfa_large, DfaScan, Dfa<u16, 1, false>)
SCAN(scan_literal, LiteralScan, Literal<false>)
SCAN(scan_literal_start, LiteralScan, Literal<true>)
SCAN(scan_glushkov, GlushkovScan, Glushkov)
SCAN(scan_shift_and, ShiftAndScan, ShiftAnd)
