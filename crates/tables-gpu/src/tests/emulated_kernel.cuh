// Behind an emulated kernel: what `emulated_main.cuh` knows of it.
Fragment arguments;
Arguments arguments_of_kernel() { return {&arguments, sizeof arguments}; }
bool is_flag(const u32* word) { return word == arguments.flag; }
void run_kernel() { fragment(arguments); }
