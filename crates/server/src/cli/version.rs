//! `forebay version`.

use forebay_documents::MONGODB_VERSION;

/// Prints the version, and the version of MongoDB whose behaviour it follows.
pub fn run() {
    let version = env!("CARGO_PKG_VERSION");
    println!(
        "forebay {version} (follows MongoDB {MONGODB_VERSION}, {}-{})",
        std::env::consts::ARCH,
        std::env::consts::OS
    );
}
