//! The kernels that were written for the fragments of plans that are kept.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::column::Column;
use crate::columns::Resident;
use crate::domain::Table;
use crate::fragment::Fragment;
use crate::groups::Values;
use crate::program::Compiled;
use crate::source::Kernel;

/// Maximum number of fragments whose kernels are kept.
const FRAGMENTS_MAX: usize = 64;
/// Maximum bytes of the tables over values and of the keys of all these fragments.
const BYTES_MAX: usize = 64 << 20;

/// The kernels of the fragments that ran last, the latest at the end.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<Vec<Kernels>>);

#[derive(Debug)]
struct Kernels {
    fragment: Weak<Fragment>,
    /// The columns for which they were written. Their memory is free to go.
    columns: Vec<Weak<Column>>,
    compiled: Arc<Compiled>,
    bytes: usize,
}

impl Kernels {
    fn are_of(&self, fragment: &Arc<Fragment>) -> bool {
        std::ptr::eq(self.fragment.as_ptr(), Arc::as_ptr(fragment))
    }
}

impl Written {
    /// Returns the kernels of a fragment over these columns, if they are kept.
    pub(crate) fn get(
        &self,
        fragment: &Arc<Fragment>,
        resident: &[Resident],
    ) -> Option<Arc<Compiled>> {
        let mut all = self.0.lock();
        let index = all.iter().position(|it| it.are_of(fragment))?;
        let found = all.remove(index);
        let columns = columns(resident);
        let are_same = found.columns.len() == columns.len()
            && found
                .columns
                .iter()
                .zip(&columns)
                .all(|(one, other)| one.ptr_eq(other));
        are_same.then(|| {
            let compiled = Arc::clone(&found.compiled);
            all.push(found);
            compiled
        })
    }

    /// Returns all kernels that are kept.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<Arc<Compiled>> {
        let all = self.0.lock();
        all.iter().map(|it| Arc::clone(&it.compiled)).collect()
    }

    /// Keeps the kernels of a fragment over these columns.
    pub(crate) fn put(
        &self,
        fragment: &Arc<Fragment>,
        resident: &[Resident],
        compiled: &Arc<Compiled>,
    ) {
        let determined = compiled.determined.values().map(|it| &it.values);
        let keys = compiled.keys.iter().map(|it| &it.values);
        let outputs = compiled.outputs.iter().flatten();
        let outputs = outputs.filter_map(|it| it.values.as_ref());
        let values = keys.chain(determined).chain(outputs);
        let keys: usize = values.map(Values::bytes).sum();
        let bytes = keys + bytes_of(&compiled.kernel);
        if bytes > BYTES_MAX / 2 {
            return;
        }
        let mut all = self.0.lock();
        all.retain(|it| it.fragment.strong_count() > 0 && !it.are_of(fragment));
        let mut held: usize = all.iter().map(|it| it.bytes).sum();
        while all.len() >= FRAGMENTS_MAX || held + bytes > BYTES_MAX {
            held -= all.remove(0).bytes;
        }
        all.push(Kernels {
            fragment: Arc::downgrade(fragment),
            columns: columns(resident),
            compiled: Arc::clone(compiled),
            bytes,
        });
    }
}

/// Returns the columns of all sources, in the order of their indexes.
fn columns(resident: &[Resident]) -> Vec<Weak<Column>> {
    let files = resident.iter().flat_map(|it| &it.files);
    let of_files = files.flat_map(|columns| {
        let mut columns: Vec<_> = columns.iter().collect();
        columns.sort_by_key(|(index, _)| **index);
        columns.into_iter().map(|(_, it)| Arc::downgrade(it))
    });
    of_files.collect()
}

fn bytes_of(kernel: &Kernel) -> usize {
    let words = kernel.tables.iter().map(|table| match table {
        Table::All(words) => words.len(),
        Table::File(files) => files.iter().map(Vec::len).sum(),
        Table::Key(_) => 0,
    });
    let builds = kernel.builds.iter().map(|it| bytes_of(&it.kernel));
    4 * words.sum::<usize>() + builds.sum::<usize>()
}
