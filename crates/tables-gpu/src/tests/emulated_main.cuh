// `main` of an emulated kernel: runs it over an image of memory in a file, at the address that the pointers in the
// image have. The image begins with the arguments.
u64 memory[1 << 20];
Fragment arguments;

std::vector<bool> has_ended;

void run_thread() {
    fragment(arguments);
    has_ended[threadIdx.x] = true;
    setcontext(&scheduler);
}

// Runs the threads of a block in turn, each until it waits or ends.
void run_block() {
    constexpr size_t kStackBytes = 256 << 10;
    const u32 threads = blockDim.x;
    std::vector<char> stacks(threads * kStackBytes);
    fibres.resize(threads);
    shown.resize(threads);
    has_ended.assign(threads, false);
    for (u32 t = 0; t < threads; t++) {
        getcontext(&fibres[t]);
        fibres[t].uc_stack.ss_sp = &stacks[t * kStackBytes];
        fibres[t].uc_stack.ss_size = kStackBytes;
        fibres[t].uc_link = nullptr;
        makecontext(&fibres[t], run_thread, 0);
    }
    while (std::count(has_ended.begin(), has_ended.end(), false) > 0) {
        for (u32 t = 0; t < threads; t++) {
            if (has_ended[t]) continue;
            threadIdx.x = t;
            swapcontext(&scheduler, &fibres[t]);
        }
    }
}

int main(int, char** texts) {
    int file = open(texts[1], O_RDWR);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) return 2;
    void* base = reinterpret_cast<void*>(strtoull(texts[2], nullptr, 16));
    void* image = mmap(base, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    if (image != base) return 3;
    memcpy(static_cast<void*>(&arguments), image, sizeof arguments);
    gridDim.x = static_cast<u32>(atoi(texts[3]));
    blockDim.x = static_cast<u32>(atoi(texts[4]));
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) run_block();
    return 0;
}
