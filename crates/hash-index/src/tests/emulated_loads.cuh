// Reads of columns, as `loads.cuh`.
#pragma once
#include "device.cuh"

template <class Word> void load_vector(const Word* from, Word* to) { memcpy(to, from, 16); }
