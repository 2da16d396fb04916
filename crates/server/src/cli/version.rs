//! `forebay version`: prints the version.

use forebay_documents::MONGODB_VERSION;

/// Prints the version of Forebay, and the version of MongoDB whose behaviour it follows.
pub fn run() {
    let version = env!("CARGO_PKG_VERSION");
    println!(
        "forebay {version} (follows MongoDB {MONGODB_VERSION}, {}-{})",
        std::env::consts::ARCH,
        std::env::consts::OS
    );
}
