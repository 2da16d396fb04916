//! Rules of this repository that the compiler does not check.

mod form;
mod prose;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// Maximum lines of a document; a longer one covers more than one subject.
const DOCUMENT_LINES_MAX: usize = 1_200;
/// Maximum bytes of a file in the repository.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The workspace crates that each crate may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("forebay-cancel", &[]),
    ("forebay-memory", &[]),
    ("forebay-terminal", &[]),
    ("forebay-text", &["forebay-cancel", "forebay-memory"]),
    (
        "forebay-text-gpu",
        &["forebay-cancel", "forebay-device", "forebay-text"],
    ),
    (
        "forebay-tables",
        &["forebay-memory", "forebay-tables-delta"],
    ),
    ("forebay-tables-delta", &[]),
    (
        "forebay-tables-documents",
        &["forebay-documents", "forebay-tables"],
    ),
    (
        "forebay-tables-flight",
        &["forebay-memory", "forebay-net", "forebay-tables"],
    ),
    (
        "forebay-tables-gpu",
        &[
            "forebay-cancel",
            "forebay-device",
            "forebay-memory",
            "forebay-movement",
            "forebay-tables",
            "forebay-text",
            "forebay-text-gpu",
        ],
    ),
    (
        "forebay-tables-postgres",
        &["forebay-memory", "forebay-net", "forebay-tables"],
    ),
    ("forebay-placement", &[]),
    ("forebay-device", &["forebay-cancel"]),
    ("forebay-hash-index", &["forebay-device"]),
    (
        "forebay-joins",
        &[
            "forebay-cancel",
            "forebay-device",
            "forebay-hash-index",
            "forebay-movement",
        ],
    ),
    ("forebay-movement", &["forebay-cancel", "forebay-device"]),
    ("forebay-wire-mongo", &[]),
    (
        "forebay-documents-query",
        &["forebay-cancel", "forebay-text", "forebay-memory"],
    ),
    (
        "forebay-documents-store",
        &["forebay-cancel", "forebay-documents-query"],
    ),
    (
        "forebay-documents-cache",
        &[
            "forebay-cancel",
            "forebay-text",
            "forebay-text-gpu",
            "forebay-placement",
            "forebay-device",
            "forebay-memory",
        ],
    ),
    (
        "forebay-documents",
        &[
            "forebay-cancel",
            "forebay-documents-query",
            "forebay-documents-store",
            "forebay-documents-cache",
            "forebay-wire-mongo",
            "forebay-device",
            "forebay-text",
            "forebay-memory",
        ],
    ),
    (
        "forebay-bench",
        &[
            "forebay-cancel",
            "forebay-device",
            "forebay-hash-index",
            "forebay-joins",
            "forebay-movement",
            "forebay-peers",
            "forebay-terminal",
            "forebay-text",
        ],
    ),
    ("forebay-net", &["forebay-memory", "forebay-wire-mongo"]),
    (
        "forebay-documents-proxy",
        &[
            "forebay-documents",
            "forebay-memory",
            "forebay-net",
            "forebay-wire-mongo",
        ],
    ),
    ("forebay-peers", &["forebay-wire-mongo"]),
    ("forebay-testkit", &["forebay-peers"]),
    (
        "forebay-server",
        &[
            "forebay-cancel",
            "forebay-documents",
            "forebay-documents-proxy",
            "forebay-joins",
            "forebay-movement",
            "forebay-net",
            "forebay-tables",
            "forebay-tables-documents",
            "forebay-tables-flight",
            "forebay-tables-gpu",
            "forebay-tables-postgres",
            "forebay-wire-mongo",
            "forebay-bench",
            "forebay-device",
            "forebay-terminal",
            "forebay-text",
            "forebay-text-gpu",
            "forebay-memory",
        ],
    ),
];

/// Where `unsafe` code is allowed, and why.
const UNSAFE_PLACES: [(&str, &str); 9] = [
    (
        "crates/device/",
        "it calls the driver of a GPU, its compiler and the system's allocator",
    ),
    ("crates/movement/tests/ring/gpu.rs", "it launches a kernel"),
    (
        "crates/bench/src/q6/launch.rs",
        "it launches kernels, and a loop for vectors that the processor may lack",
    ),
    ("crates/hash-index/src/launch.rs", "it launches kernels"),
    ("crates/tables-gpu/src/launch.rs", "it launches kernels"),
    ("crates/text-gpu/src/scanner.rs", "it launches kernels"),
    (
        "crates/movement/src/kernels/launch.rs",
        "it launches kernels",
    ),
    (
        "crates/movement/src/storage/uring.rs",
        "the operating system reads and writes memory after a call has returned",
    ),
    (
        "crates/text/src/pcre2.rs",
        "it calls PCRE2, with the limits that the safe crate cannot set",
    ),
];

/// Accepted licences of dependencies; with a choice of licences, one of them is enough.
const LICENCES: [&str; 12] = [
    "Apache-2.0",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "BSL-1.0",
    "CC0-1.0",
    "Apache-2.0 WITH LLVM-exception",
];

/// Dependencies with other licences, and why they are accepted.
const LICENCE_EXCEPTIONS: [(&str, &str); 2] = [
    (
        "webpki-roots",
        "CDLA-Permissive-2.0: a list of certificates, data and not code",
    ),
    (
        "libbz2-rs-sys",
        "bzip2-1.0.6: the BSD licence with a clause against false claims of origin, as in Zlib",
    ),
];

/// Text that must not appear in Rust source, and what to write instead. Each text is split in two, so that this file
/// does not break the rule.
const BANNED: [(&str, &str, &str); 10] = [
    ("dbg", "!(", "use tracing"),
    ("todo", "!(", "finish it, or leave it out with its mention"),
    (
        "unimplemented",
        "!(",
        "finish it, or leave it out with its mention",
    ),
    ("TO", "DO", "do it, or file it"),
    ("FIX", "ME", "fix it, or file it"),
    ("#[allow", "(", "use #[expect(..., reason = ...)]"),
    (
        "#[ign",
        "ore]",
        "a test runs, or says why it cannot on this machine",
    ),
    ("std::mem::trans", "mute", "use bytes and from_le_bytes"),
    (
        ".i32(",
        "..",
        "say where the range begins: a random `..n` starts at the least value of its type",
    ),
    (
        ".i64(",
        "..",
        "say where the range begins: a random `..n` starts at the least value of its type",
    ),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    license: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    doctest: bool,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    rename: Option<String>,
}

fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    folder
        .canonicalize()
        .expect("the workspace is two folders above this crate")
}

fn metadata() -> Metadata {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root());
    let output = command.output().expect("cargo is there: it runs this test");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// Returns every file in git, by its path from the root.
fn files() -> Vec<PathBuf> {
    let mut command = Command::new("git");
    command
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root());
    let output = command.output().expect("git is there: this is a checkout");
    let names = String::from_utf8(output.stdout).expect("file names here are UTF-8");
    let files = names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from);
    files.filter(|file| root().join(file).is_file()).collect()
}

fn files_of(extension: &str) -> Vec<PathBuf> {
    files()
        .into_iter()
        .filter(|file| file.extension().is_some_and(|found| found == extension))
        .collect()
}

fn read(file: &Path) -> String {
    fs::read_to_string(root().join(file))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Panics with all complaints, if there are any.
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn crates_depend_only_downwards() {
    let metadata = metadata();
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut complaints = Vec::new();
    for package in members(&metadata) {
        let Some(allowed) = arrows.get(package.name.as_str()) else {
            complaints.push(format!(
                "{} is not in ARROWS: add it there and to ARCHITECTURE.md",
                package.name
            ));
            continue;
        };
        let ours = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.name.starts_with("forebay-"));
        let normal = ours.filter(|dependency| dependency.kind.is_none());
        let wrong = normal.filter(|dependency| !allowed.contains(&dependency.name.as_str()));
        complaints.extend(
            wrong.map(|dependency| {
                format!("{} must not depend on {}", package.name, dependency.name)
            }),
        );
    }
    assert_none(&complaints);
}

#[test]
fn only_the_device_layer_knows_cuda() {
    let metadata = metadata();
    let names_cudarc = |package: &&Package| {
        let mut dependencies = package.dependencies.iter();
        dependencies.any(|dependency| dependency.name == "cudarc")
    };
    let names: Vec<&str> = members(&metadata)
        .filter(names_cudarc)
        .map(|package| package.name.as_str())
        .collect();
    assert_eq!(names, ["forebay-device"]);
}

fn members(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata
        .packages
        .iter()
        .filter(|package| metadata.workspace_members.contains(&package.id))
}

#[test]
fn every_licence_is_one_that_we_accept() {
    let metadata = metadata();
    let exceptions: BTreeMap<&str, &str> = LICENCE_EXCEPTIONS.into_iter().collect();
    let unknown = metadata
        .packages
        .iter()
        .filter(|package| !exceptions.contains_key(package.name.as_str()));
    let wrong = unknown.filter(|package| !package.license.as_deref().is_some_and(is_accepted));
    let complaints: Vec<String> = wrong
        .map(|package| {
            format!(
                "{}: {:?} is not an accepted licence",
                package.name, package.license
            )
        })
        .collect();
    assert_none(&complaints);
}

/// Returns whether a licence expression such as `A AND (B OR C)` or `A/B` is accepted. Every part of an AND must be
/// accepted, and at least one part of an OR; `/` means OR.
fn is_accepted(expression: &str) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], "");
    // In SPDX, AND binds tighter than OR, but packages parenthesise OR inside AND. So an expression is accepted only if
    // both readings of it are.
    plain.split(" AND ").all(|part| {
        part.split(" OR ")
            .any(|licence| LICENCES.contains(&licence.trim()))
    })
}

#[test]
fn a_licence_expression_is_read_rightly() {
    assert!(is_accepted("MIT OR GPL-2.0-only"));
    assert!(is_accepted("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(is_accepted("MIT/Apache-2.0"));
    assert!(!is_accepted("GPL-3.0-only"));
    assert!(!is_accepted("MIT AND GPL-3.0-only"));
}

#[test]
fn dependencies_are_used() {
    let metadata = metadata();
    let mut complaints = Vec::new();
    for package in members(&metadata) {
        let source = source_beside(&package.manifest_path);
        for dependency in &package.dependencies {
            let name = dependency
                .rename
                .as_ref()
                .unwrap_or(&dependency.name)
                .replace('-', "_");
            if !source.contains(&format!("{name}::")) && !source.contains(&format!("use {name}")) {
                complaints.push(format!("{} does not use {}", package.name, dependency.name));
            }
        }
    }
    assert_none(&complaints);
}

/// Returns all Rust source of a crate as one string.
fn source_beside(manifest: &Path) -> String {
    source_of(manifest.parent().expect("a manifest lies in a folder"))
}

/// Returns all Rust source of a folder as one string.
fn source_of(folder: &Path) -> String {
    let folder = folder
        .strip_prefix(root())
        .expect("members lie in the workspace");
    files_of("rs")
        .iter()
        .filter(|file| file.starts_with(folder))
        .map(|file| read(file))
        .collect()
}

/// Crates without examples say so, because it takes seconds for each to look for them.
#[test]
fn examples_in_comments_are_tested() {
    let metadata = metadata();
    let untested = members(&metadata).filter(|package| {
        let mut libraries = package
            .targets
            .iter()
            .filter(|target| target.kind == ["lib"]);
        let source = source_of(&package.manifest_path.with_file_name("src"));
        let has_example = source.lines().map(str::trim_start).any(|line| {
            line.contains("```") && (line.starts_with("///") || line.starts_with("//!"))
        });
        has_example && libraries.any(|library| !library.doctest)
    });
    let complaints: Vec<String> = untested
        .map(|package| format!("{}: `doctest = false`, but an example", package.name))
        .collect();
    assert_none(&complaints);
}

#[test]
fn unsafe_stays_behind_its_fence() {
    let keyword = format!("{}{}", "uns", "afe");
    let openings = [" {", " fn", " impl", " extern"].map(|rest| format!("{keyword}{rest}"));
    let outside = files_of("rs").into_iter().filter(|file| {
        !UNSAFE_PLACES
            .iter()
            .any(|(place, _)| file.to_string_lossy().starts_with(place))
    });
    let holders =
        outside.filter(|file| openings.iter().any(|opening| read(file).contains(opening)));
    let complaints: Vec<String> = holders
        .map(|file| format!("{}: {keyword} outside of UNSAFE_PLACES", file.display()))
        .collect();
    assert_none(&complaints);
}

#[test]
fn crates_without_a_place_for_it_forbid_unsafe_code() {
    let roots = files_of("rs")
        .into_iter()
        .filter(|file| file.ends_with("src/lib.rs") || file.ends_with("src/main.rs"));
    let fenced = roots.filter(|file| {
        let folder = file
            .parent()
            .and_then(Path::parent)
            .expect("a crate's root lies in its src");
        !UNSAFE_PLACES
            .iter()
            .any(|(place, _)| Path::new(place).starts_with(folder))
    });
    let silent = fenced.filter(|file| !read(file).contains("#![forbid(unsafe_code)]"));
    let complaints: Vec<String> = silent
        .map(|file| format!("{}: say #![forbid(unsafe_code)]", file.display()))
        .collect();
    assert_none(&complaints);
}

#[test]
fn nothing_banned_is_left() {
    let mut complaints = Vec::new();
    for file in files_of("rs") {
        for (number, line) in read(&file).lines().enumerate() {
            for (head, tail, instead) in BANNED {
                if line.contains(&format!("{head}{tail}")) {
                    complaints.push(format!(
                        "{}:{}: {head}{tail}: {instead}",
                        file.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_source_file_says_what_it_is_about() {
    let silent = files_of("rs").into_iter().filter(|file| {
        let text = read(file);
        !text.trim_start_matches("#!/usr/bin/env").starts_with("//!")
    });
    let complaints: Vec<String> = silent
        .map(|file| format!("{}: begin with a //! sentence", file.display()))
        .collect();
    assert_none(&complaints);
}

#[test]
fn files_are_of_a_bearable_size() {
    let mut complaints = Vec::new();
    for file in files() {
        let bytes = fs::metadata(root().join(&file)).map_or(0, |found| found.len());
        if bytes > FILE_BYTES_MAX {
            complaints.push(format!(
                "{}: {bytes} bytes do not belong in git",
                file.display()
            ));
        }
        let is_document = file.extension().is_some_and(|found| found == "md");
        if is_document {
            let lines = read(&file).lines().count();
            if lines > DOCUMENT_LINES_MAX {
                complaints.push(format!(
                    "{}: {lines} lines are more than one subject",
                    file.display()
                ));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn lines_end_cleanly() {
    let mut complaints = Vec::new();
    for extension in ["rs", "py", "js", "toml", "sh", "md"] {
        for file in files_of(extension) {
            let text = read(&file);
            let trailing = text.lines().position(|line| line.ends_with([' ', '\t']));
            complaints.extend(
                trailing.map(|line| format!("{}:{}: space at its end", file.display(), line + 1)),
            );
            if !text.is_empty() && !text.ends_with('\n') {
                complaints.push(format!("{}: no newline at its end", file.display()));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn links_in_the_documentation_lead_somewhere() {
    let mut complaints = Vec::new();
    for file in files_of("md") {
        for target in local_links(&read(&file)) {
            let folder = file.parent().expect("a file lies in a folder");
            if !root().join(folder).join(&target).exists() {
                complaints.push(format!("{}: nothing at {target}", file.display()));
            }
        }
    }
    assert_none(&complaints);
}

/// Returns the targets of `[text](target)` that are files of this repository, without the part after `#`.
fn local_links(text: &str) -> Vec<String> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with(['#', '<']));
    let paths = local.map(|target| target.split('#').next().unwrap_or(target).trim());
    paths
        .filter(|path| !path.is_empty() && !path.contains(['$', ' ']))
        .map(str::to_owned)
        .collect()
}

#[test]
fn links_are_recognised() {
    let text = "see [a](b/c.md#part), [web](https://example.org), [here](#below) and [d](e.md)";
    assert_eq!(local_links(text), ["b/c.md", "e.md"]);
}

#[test]
fn decisions_are_numbered_without_gaps() {
    let mut numbers = BTreeSet::new();
    for file in files_of("md")
        .iter()
        .filter(|file| file.starts_with("docs/decisions"))
    {
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let number = name
            .split('-')
            .next()
            .and_then(|digits| digits.parse::<usize>().ok());
        let number = number.unwrap_or_else(|| panic!("{name}: decisions are named NNNN-title.md"));
        assert!(numbers.insert(number), "{name}: this number is taken");
    }
    let expected: BTreeSet<usize> = (1..=numbers.len()).collect();
    assert_eq!(numbers, expected, "decisions are numbered from 1");
}
