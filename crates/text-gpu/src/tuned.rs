//! The kernels' program, compiled with a policy.

use std::sync::Arc;

use forebay_device::cuda::{Program, ProgramSpec, device_header};
use parking_lot::Mutex;

use crate::arguments;
use crate::batch::Kernel;
use crate::policy::Policy;

/// A policy and the program compiled with it; created once per policy and process.
pub(crate) struct Tuned {
    pub(crate) policy: Policy,
    pub(crate) program: Program,
}

static ALL: Mutex<Vec<Arc<Tuned>>> = Mutex::new(Vec::new());

impl Tuned {
    pub(crate) fn new(policy: &Policy) -> Arc<Tuned> {
        let mut all = ALL.lock();
        if let Some(tuned) = all.iter().find(|tuned| tuned.policy == *policy) {
            return Arc::clone(tuned);
        }
        let tuned = Arc::new(Tuned {
            policy: policy.clone(),
            program: Program::new(spec(policy)),
        });
        all.push(Arc::clone(&tuned));
        tuned
    }
}

/// Returns the specification of the program.
pub(crate) fn spec(policy: &Policy) -> ProgramSpec {
    let header = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let kernels = Kernel::ALL.iter();
    let entries = kernels.flat_map(|kernel| [kernel.entry(false), kernel.entry(true)]);
    ProgramSpec {
        name: "scan.cu".to_owned(),
        source: include_str!("kernels/scan.cu").into(),
        headers: vec![
            device_header(),
            ("arguments.cuh".to_owned(), arguments::header()),
            header("policy.cuh", include_str!("kernels/policy.cuh")),
            header("matcher.cuh", include_str!("kernels/matcher.cuh")),
            header("report.cuh", include_str!("kernels/report.cuh")),
            header("tiles.cuh", include_str!("kernels/tiles.cuh")),
            header("dfa.cuh", include_str!("kernels/dfa.cuh")),
            header("literal.cuh", include_str!("kernels/literal.cuh")),
            header("bits.cuh", include_str!("kernels/bits.cuh")),
        ],
        options: policy.options(),
        entries: entries.map(str::to_owned).collect(),
    }
}
