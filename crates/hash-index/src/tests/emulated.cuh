// What the kernels of this crate use of CUDA beyond the emulation in `tables-gpu`. Blocks run one after another, and so
// one array serves all of them.
#undef __shared__
#define __shared__ static
#define __forceinline__ inline

struct alignas(16) ulonglong2 {
    u64 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) uint2 {
    u32 x, y;
};

template <class Value> Value __ldg(const Value* from) { return *from; }
template <class Value> Value __ldcg(const Value* from) { return *from; }
template <class Value> Value __ldcs(const Value* from) { return *from; }
template <class Number> Number atomicCAS_system(Number* to, Number expected, Number number) {
    return atomicCAS(to, expected, number);
}
inline u64 atomicOr(u64* to, u64 bits) {
    u64 before = *to;
    *to |= bits;
    return before;
}
inline int __ffs(u32 bits) { return __builtin_ffs(bits); }
inline u64 __umul64hi(u64 a, u64 b) { return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64); }
