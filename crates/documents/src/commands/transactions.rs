//! `commitTransaction` and `abortTransaction`: always fail, because transactions are not supported.

use forebay_documents_query::Code;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::request::Request;

/// `commitTransaction`.
pub const COMMIT: Spec = Spec {
    name: "commitTransaction",
    help: "refused: transactions are not supported",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

/// `abortTransaction`.
pub const ABORT: Spec = Spec {
    name: "abortTransaction",
    ..COMMIT
};

fn run(_: &Request<'_>) -> Reply {
    Err(CommandError::refused(
        Code::IllegalOperation,
        "transactions are not supported",
    ))
}
