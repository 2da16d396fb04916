// Builds and probes hash tables. The grid has as many threads as fit on the GPU; each takes rows until there are none.
#include "bucketed.cuh"
#include "linear.cuh"
#include "perfect.cuh"

// Inserts rows. Those that cannot be inserted set a bit of `failures`.
template <class Table>
__global__ void __launch_bounds__(kThreads, Table::kBlocks) insert(const __grid_constant__ Inserting a) {
    typename Table::Insert work(a.index, a.outcome);
    Columns<typename Table::Word>(a.rows).each(this_thread(), threads(), work);
    work.inserted.add_to(a.outcome);
}

// Adds the matches of rows to `totals`.
template <class Table>
__global__ void __launch_bounds__(kThreads, Table::kBlocks) probe(const __grid_constant__ Probing a) {
    typename Table::Probe work(a.index);
    Columns<typename Table::Word>(a.rows).each(this_thread(), threads(), work);
    work.found.add_to(a.totals);
}
