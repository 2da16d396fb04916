// Behind an emulated kernel: what `emulated_main.cuh` knows of it.
Fragment arguments;
Arguments arguments_of_kernel() { return {&arguments, sizeof arguments}; }
void run_kernel() { fragment(arguments); }
