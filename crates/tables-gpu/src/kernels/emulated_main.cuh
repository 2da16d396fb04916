// `main` of an emulated kernel. The image begins with the arguments.
u64 memory[1 << 20];

int main(int, char** arguments) {
    int file = open(arguments[1], O_RDWR);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) return 2;
    void* base = reinterpret_cast<void*>(strtoull(arguments[2], nullptr, 16));
    void* image = mmap(base, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    if (image != base) return 3;
    Fragment fragment_arguments;
    memcpy(static_cast<void*>(&fragment_arguments), image, sizeof fragment_arguments);
    gridDim.x = static_cast<u32>(atoi(arguments[3]));
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) fragment(fragment_arguments);
    return 0;
}
