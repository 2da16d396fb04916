//! `forebay version`: prints the version.

use forebay_documents::MONGODB_VERSION;

use forebay_terminal::{OutputError, print_line};

/// Prints the version of Forebay, and the version of MongoDB whose behaviour it follows.
///
/// # Errors
/// If standard output cannot be written.
pub fn run() -> Result<(), OutputError> {
    let version = env!("CARGO_PKG_VERSION");
    print_line(format_args!(
        "forebay {version} (follows MongoDB {MONGODB_VERSION}, {}-{})",
        std::env::consts::ARCH,
        std::env::consts::OS
    ))
}
