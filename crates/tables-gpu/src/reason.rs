//! Why a part of a plan runs on the CPU.

use std::any::Any;
use std::fmt;

use datafusion::error::DataFusionError;
use forebay_device::{JobFailure, KernelError, OutOfMemory, SubmitError};
use forebay_movement::MoveError;
use forebay_text_gpu::LoadError;

use crate::packed::Unpackable;

/// The reason if the CPU is estimated to be faster.
pub(crate) const FASTER: &str = "the CPU is estimated to be faster";

/// Why a part of a plan runs on the CPU, as `EXPLAIN` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    kind: Kind,
    text: String,
    missing: Option<Missing>,
    repeated: Option<Repeated>,
    /// Whether the text has the times that the CPU and the device were estimated to take.
    has_estimates: bool,
}

/// The kinds of reasons, which a metric counts apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Kernels do not compute the plan, its types or the ranges of its values.
    Unsupported,
    /// The planner chose the CPU: it is estimated to be faster, or a table is declared with `gpu = off`.
    Planner,
    /// Columns are not on the device yet.
    Loading,
    /// Kernels are being compiled.
    Compiling,
    /// A kernel does not compile, or the driver does not load it.
    CompileError,
    /// The device, the host or the disk has no room.
    Memory,
    /// The queue of the device is full.
    QueueFull,
    /// The device was lost.
    DeviceLost,
    /// The values of a column or the rows that a run found.
    Data,
    /// Another error, such as one of a file.
    Error,
}

impl Kind {
    /// All kinds, in the order of their declaration.
    pub(crate) const ALL: [Kind; 10] = [
        Kind::Unsupported,
        Kind::Planner,
        Kind::Loading,
        Kind::Compiling,
        Kind::CompileError,
        Kind::Memory,
        Kind::QueueFull,
        Kind::DeviceLost,
        Kind::Data,
        Kind::Error,
    ];

    /// Returns the value of the metric's label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Unsupported => "unsupported",
            Kind::Planner => "planner",
            Kind::Loading => "loading",
            Kind::Compiling => "compiling",
            Kind::CompileError => "compile_error",
            Kind::Memory => "memory",
            Kind::QueueFull => "queue_full",
            Kind::DeviceLost => "device_lost",
            Kind::Data => "data",
            Kind::Error => "error",
        }
    }

    /// Returns the kind of an error of any type.
    fn of(error: &dyn Any) -> Kind {
        if let Some(failure) = error.downcast_ref::<JobFailure>() {
            Kind::of_failure(failure)
        } else if let Some(error) = error.downcast_ref::<SubmitError>() {
            Kind::of_submit(error)
        } else if let Some(error) = error.downcast_ref::<MoveError>() {
            Kind::of_move(error)
        } else if let Some(error) = error.downcast_ref::<LoadError>() {
            Kind::of_load(error)
        } else if let Some(error) = error.downcast_ref::<Unpackable>() {
            Kind::of_values(error)
        } else if let Some(error) = error.downcast_ref::<DataFusionError>() {
            Kind::of_query(error)
        } else if error.is::<OutOfMemory>() {
            Kind::Memory
        } else {
            Kind::Error
        }
    }

    fn of_failure(failure: &JobFailure) -> Kind {
        match failure {
            JobFailure::Kernel(KernelError::Compile(_) | KernelError::Load { .. }) => {
                Kind::CompileError
            }
            JobFailure::OutOfMemory(_)
            | JobFailure::NoRoomOnCard { .. }
            | JobFailure::CannotPin { .. } => Kind::Memory,
            _ => Kind::Error,
        }
    }

    fn of_submit(error: &SubmitError) -> Kind {
        match error {
            SubmitError::QueueFull { .. } => Kind::QueueFull,
            SubmitError::Lost { .. } => Kind::DeviceLost,
            _ => Kind::Error,
        }
    }

    fn of_move(error: &MoveError) -> Kind {
        match error {
            MoveError::DeviceLost { .. } => Kind::DeviceLost,
            MoveError::DeviceMemory(_) | MoveError::PinnedMemory { .. } => Kind::Memory,
            MoveError::Register(_) | MoveError::Managed(_) => Kind::Memory,
            MoveError::Job { why, .. } => Kind::of_failure(why),
            MoveError::Submit(error) => Kind::of_submit(error),
            _ => Kind::Error,
        }
    }

    fn of_load(error: &LoadError) -> Kind {
        match error {
            LoadError::OutOfMemory(_) => Kind::Memory,
            LoadError::Refused(error) => Kind::of_submit(error),
            LoadError::Lost { .. } => Kind::DeviceLost,
            _ => Kind::Error,
        }
    }

    fn of_values(error: &Unpackable) -> Kind {
        match error {
            Unpackable::Type(_) => Kind::Unsupported,
            Unpackable::NoMemory(_) => Kind::Memory,
            Unpackable::Ended => Kind::Error,
            _ => Kind::Data,
        }
    }

    fn of_query(error: &DataFusionError) -> Kind {
        match error.find_root() {
            DataFusionError::ResourcesExhausted(_) => Kind::Memory,
            _ => Kind::Error,
        }
    }
}

/// The sources whose rows a run has found to repeat, by their indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Repeated {
    /// Those of which several rows have the same key.
    pub(crate) same_keys: Vec<usize>,
    /// Those whose tables, or a slice of them, have no room for their rows.
    pub(crate) many_rows: Vec<usize>,
}

/// Bytes that a device had too few of when memory was to be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
}

impl Reason {
    /// Returns the reason that kernels do not compute something.
    pub(crate) fn new(text: impl Into<String>) -> Reason {
        Reason::of_kind(Kind::Unsupported, text)
    }

    pub(crate) fn of_kind(kind: Kind, text: impl Into<String>) -> Reason {
        Reason {
            kind,
            text: text.into(),
            missing: None,
            repeated: None,
            has_estimates: false,
        }
    }

    /// Returns the reason that there is no room.
    pub(crate) fn no_room(text: impl Into<String>) -> Reason {
        Reason::of_kind(Kind::Memory, text)
    }

    /// Returns the reason that a device of this name was lost.
    pub(crate) fn lost(device: &str) -> Reason {
        Reason::of_kind(Kind::DeviceLost, format!("{device} was lost"))
    }

    /// Returns the reason that an error is.
    pub(crate) fn of(error: impl fmt::Display + 'static) -> Reason {
        Reason::of_kind(Kind::of(&error), error.to_string())
    }

    /// Returns the reason that the values of the rows are.
    pub(crate) fn of_data(text: impl Into<String>) -> Reason {
        Reason::of_kind(Kind::Data, text)
    }

    /// Returns the reason that the CPU is estimated to be faster, with the estimated microseconds of both.
    pub(crate) fn of_estimates(cpu_us: u64, gpu_us: u64) -> Reason {
        let [cpu, gpu] = [cpu_us, gpu_us].map(|us| us as f64 / 1e3);
        let text = format!("the CPU is estimated at {cpu:.2} ms, the GPU at {gpu:.2} ms");
        Reason {
            has_estimates: true,
            ..Reason::of_kind(Kind::Planner, text)
        }
    }

    /// Returns the same reason for a column of this name.
    pub(crate) fn of_column(self, name: &str) -> Reason {
        Reason {
            text: format!("the column {name}: {}", self.text),
            ..self
        }
    }

    /// Returns the same reason with memory that could not be allocated.
    pub(crate) fn for_want_of(self, missing: Missing) -> Reason {
        Reason {
            kind: Kind::Memory,
            missing: Some(missing),
            ..self
        }
    }

    /// Returns the reason that rows of these sources repeat.
    pub(crate) fn of_joins(repeated: Repeated) -> Reason {
        let text = match repeated.many_rows.is_empty() {
            true => "several rows of a join have the same key",
            false => "joins repeat more rows than a table has room for",
        };
        Reason {
            repeated: Some(repeated),
            ..Reason::of_data(text)
        }
    }

    /// Returns the same reason, marked as caused by rows that joins repeat: another run will fail, too.
    pub(crate) fn of_repeated_rows(self) -> Reason {
        Reason {
            kind: Kind::Data,
            repeated: Some(Repeated::default()),
            ..self
        }
    }

    /// Returns the same reason, which does not hold for a join whose table has all rows of this source.
    pub(crate) fn of_same_keys(self, source: usize) -> Reason {
        Reason {
            repeated: Some(Repeated {
                same_keys: vec![source],
                many_rows: Vec::new(),
            }),
            ..self
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the text without estimates, which differ from query to query.
    pub(crate) fn text(&self) -> &str {
        match self.has_estimates {
            true => FASTER,
            false => &self.text,
        }
    }

    /// Returns whether the reason has this text, without estimates.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text() == text
    }

    /// Returns the sources whose rows repeat, if that is the reason.
    pub(crate) fn repeated(&self) -> Option<&Repeated> {
        self.repeated.as_ref()
    }

    /// Returns the memory that could not be allocated, if that is the reason.
    pub(crate) fn missing(&self) -> Option<Missing> {
        self.missing
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use forebay_device::Class;

    use super::*;

    fn out_of_memory() -> OutOfMemory {
        OutOfMemory {
            device: "cuda:0".to_owned(),
            wanted_bytes: 2,
            free_bytes: 1,
            budget_bytes: 1,
        }
    }

    fn lost() -> SubmitError {
        SubmitError::Lost {
            device: "cuda:0".to_owned(),
            why: "a fault".to_owned(),
        }
    }

    fn does_not_load() -> JobFailure {
        JobFailure::Kernel(KernelError::Load {
            program: "fragment".to_owned(),
            code: "a code".to_owned(),
        })
    }

    #[test]
    fn kinds_have_names_and_places_of_their_own() {
        let mut names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
    }

    #[test]
    fn errors_tell_their_kind() {
        let full = SubmitError::QueueFull {
            device: "cuda:0".to_owned(),
            class: Class::Interactive,
            depth: 1,
        };
        let of_move = MoveError::Job {
            device: "cuda:0".to_owned(),
            why: does_not_load(),
        };
        let exhausted = DataFusionError::ResourcesExhausted("full".to_owned());
        let exhausted = exhausted.context("a sort");
        let panicked = JobFailure::Panicked {
            message: "a bug".to_owned(),
        };
        for (reason, kind) in [
            (Reason::of(out_of_memory()), Kind::Memory),
            (Reason::of(JobFailure::from(out_of_memory())), Kind::Memory),
            (Reason::of(LoadError::from(out_of_memory())), Kind::Memory),
            (Reason::of(MoveError::from(out_of_memory())), Kind::Memory),
            (Reason::of(exhausted), Kind::Memory),
            (Reason::of(full), Kind::QueueFull),
            (Reason::of(lost()), Kind::DeviceLost),
            (Reason::of(LoadError::from(lost())), Kind::DeviceLost),
            (Reason::of(MoveError::Submit(lost())), Kind::DeviceLost),
            (Reason::of(does_not_load()), Kind::CompileError),
            (Reason::of(of_move), Kind::CompileError),
            (Reason::of(Unpackable::Wide), Kind::Data),
            (Reason::of(panicked), Kind::Error),
            (Reason::of("a text"), Kind::Error),
            (Reason::of_joins(Repeated::default()), Kind::Data),
            (Reason::new("median").of_repeated_rows(), Kind::Data),
            (Reason::new("median"), Kind::Unsupported),
        ] {
            assert_eq!(reason.kind(), kind, "{reason}");
        }
        let missing = Missing {
            device: 0,
            bytes: 1,
        };
        let reason = Reason::of(lost()).for_want_of(missing);
        assert_eq!(reason.kind(), Kind::Memory);
    }

    #[test]
    fn the_kind_stays_when_a_column_is_named() {
        let reason = Reason::of(Unpackable::Wide).of_column("price");
        assert_eq!(reason.kind(), Kind::Data);
        assert!(reason.is("the column price: numbers of more than 64 bits"));
    }
}
