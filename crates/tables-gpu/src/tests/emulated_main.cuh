// `main` of an emulated kernel: runs it over files, each mapped at the address that pointers have. The last one begins
// with the arguments of the kernel.
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <vector>

// The shared memory that a launch asks for. Blocks run one after another.
alignas(16) u64 memory[1 << 20];
u64 shown[1024];
u64 looks_left;

// A context starts a thread on its stack. Later switches are jumps, because each switch of contexts is a system call.
struct Waiting {
    jmp_buf place;
};
Waiting scheduler;
std::vector<Waiting> waiting;
std::vector<ucontext_t> fibres;
std::vector<bool> has_started, has_ended, waits_for_block;

// The threads of a warp run in turn, each up to the next wait: so this thread goes on after all have come here.
void __syncwarp() {
    const u32 thread = threadIdx.x;
    if (_setjmp(waiting[thread].place) == 0) _longjmp(scheduler.place, 1);
    threadIdx.x = thread;
}

void __syncthreads() {
    waits_for_block[threadIdx.x] = true;
    __syncwarp();
}

void run_thread() {
    run_kernel();
    has_ended[threadIdx.x] = true;
    _longjmp(scheduler.place, 1);
}

// Runs a thread until it waits or ends, and then jumps back to this frame.
void run_until_wait(u32 thread) {
    threadIdx.x = thread;
    if (_setjmp(scheduler.place) != 0) return;
    if (has_started[thread]) _longjmp(waiting[thread].place, 1);
    has_started[thread] = true;
    setcontext(&fibres[thread]);
}

// Runs the threads of a block in turn, each until it waits or ends.
void run_block() {
    constexpr size_t kStackBytes = 256 << 10;
    const u32 threads = blockDim.x;
    // Only what a fibre touches is memory.
    static char* stacks = static_cast<char*>(
        mmap(nullptr, threads * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (stacks == MAP_FAILED) abort();
    fibres.resize(threads);
    waiting.resize(threads);
    has_started.assign(threads, false);
    has_ended.assign(threads, false);
    waits_for_block.assign(threads, false);
    for (u32 t = 0; t < threads; t++) {
        getcontext(&fibres[t]);
        fibres[t].uc_stack.ss_sp = &stacks[t * kStackBytes];
        fibres[t].uc_stack.ss_size = kStackBytes;
        fibres[t].uc_link = nullptr;
        makecontext(&fibres[t], run_thread, 0);
    }
    while (std::count(has_ended.begin(), has_ended.end(), false) > 0) {
        bool has_run = false;
        for (u32 t = 0; t < threads; t++) {
            if (has_ended[t] || waits_for_block[t]) continue;
            has_run = true;
            run_until_wait(t);
        }
        // All threads that have not ended wait for the block.
        if (!has_run) waits_for_block.assign(threads, false);
    }
}

// Maps a file at an address in hexadecimal.
void* mapped(const char* path, const char* address) {
    int file = open(path, O_RDWR);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) exit(2);
    void* base = reinterpret_cast<void*>(strtoull(address, nullptr, 16));
    void* map = mmap(base, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    if (map != base) exit(3);
    return map;
}

// The files and their addresses, then the looks at the flag before it is set, and the numbers of blocks and threads.
int main(int count, char** texts) {
    const void* last = nullptr;
    for (int i = 1; i + 4 < count; i += 2) last = mapped(texts[i], texts[i + 1]);
    const Arguments arguments = arguments_of_kernel();
    memcpy(arguments.address, last, arguments.bytes);
    looks_left = strtoull(texts[count - 3], nullptr, 10);
    gridDim.x = static_cast<u32>(atoi(texts[count - 2]));
    blockDim.x = static_cast<u32>(atoi(texts[count - 1]));
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) run_block();
    return 0;
}
