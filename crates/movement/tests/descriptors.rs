//! Files when the process has no file descriptor left. One test, because the limit is that of the whole process.

use std::fs::{self, File};
use std::iter;

use forebay_movement::storage::{DataFile, FileCause, PageCache};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Maximum descriptors of the process.
const LIMIT: u64 = 64;

#[test]
fn too_few_descriptors_are_an_error_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("table");
    fs::write(&path, [1; 8192]).expect("room");
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("Linux has limits");
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT, hard).expect("a lower limit");
    let mut held: Vec<File> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
    for free in 0..3 {
        match DataFile::open(&path, PageCache::Bypass) {
            Ok(_) => assert_eq!(
                free, 2,
                "a descriptor to use the page cache, and one to bypass it"
            ),
            Err(error) => {
                let is_right = matches!(error.cause, FileCause::TooManyOpen(_));
                assert!(is_right && free < 2, "{free} descriptors: {error}");
                assert!(error.to_string().contains("(`ulimit -n`)"), "{error}");
            }
        }
        held.pop();
    }
}
