//! `forebay kernels`: lists the GPU kernels, or compiles them before the first search.

use anyhow::{Result, bail};
use bson::{Document, doc};
use clap::{Args, Subcommand};
use forebay_device::cuda::{Arch, Cubin, KernelCache, KernelResources, gpus};

use super::table;
use forebay_terminal::{print, print_line};

/// List the kernels for GPUs, or compile them before the first search
#[derive(Debug, Args)]
pub struct KernelsArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the kernels, with the resources of compiled ones
    List(ArchArgs),
    /// Compile and cache the kernels that are not compiled yet, then list all
    ///
    /// Those of SQL are made for the columns of a server's tables: `forebay serve --tables-gpu-warm FILE` compiles
    /// those of a file of queries.
    Warm(ArchArgs),
}

#[derive(Debug, Args)]
struct ArchArgs {
    /// Architectures, such as `sm_90`, separated by commas; by default those of this machine's GPUs.
    #[arg(long = "arch", value_name = "ARCH", value_delimiter = ',')]
    archs: Vec<Arch>,
}

/// Columns of the list: heading and field.
const COLUMNS: [(&str, &str); 6] = [
    ("program", "program"),
    ("kernel", "kernel"),
    ("arch", "arch"),
    ("registers", "registers"),
    ("local bytes", "local"),
    ("shared bytes", "shared"),
];

/// Runs the command.
///
/// # Errors
/// If a kernel does not compile, if there is no compiler, or if there is no GPU and no architecture is named.
pub fn run(args: &KernelsArgs) -> Result<()> {
    let cache = KernelCache::from_environment();
    let (compiles, archs) = match &args.action {
        Action::List(args) => (false, wanted(args)?),
        Action::Warm(args) => (true, wanted(args)?),
    };
    let mut rows = Vec::new();
    for &arch in &archs {
        for spec in forebay_text_gpu::kernels(arch) {
            let cubin = if compiles {
                Some(cache.get(&spec, arch)?)
            } else {
                cache.find(&spec, arch)?
            };
            rows.extend(rows_of(&spec.name, &spec.entries, arch, cubin.as_ref()));
        }
    }
    print(table::of(&COLUMNS, &rows))?;
    match cache.folder() {
        Some(folder) => print_line(format_args!("cached in {}", folder.display()))?,
        None => print_line("not cached: neither HOME nor FOREBAY_KERNEL_CACHE is set")?,
    }
    Ok(())
}

fn wanted(args: &ArchArgs) -> Result<Vec<Arch>> {
    if !args.archs.is_empty() {
        return Ok(args.archs.clone());
    }
    // Ignore why the GPUs cannot be listed: in each case, the user can name architectures instead.
    let gpus = gpus().unwrap_or_default();
    let mut archs: Vec<Arch> = gpus.iter().map(|gpu| gpu.arch).collect();
    archs.sort();
    archs.dedup();
    if archs.is_empty() {
        bail!("there is no GPU to compile for: name architectures, as in --arch sm_90");
    }
    Ok(archs)
}

/// Returns one row for each kernel, with its resources if the kernel is compiled.
fn rows_of(program: &str, entries: &[String], arch: Arch, cubin: Option<&Cubin>) -> Vec<Document> {
    let named = |name: &str| doc! { "program": program, "kernel": name, "arch": arch.to_string() };
    match cubin {
        Some(cubin) => cubin
            .entries
            .iter()
            .map(|kernel| with_resources(named(&kernel.name), kernel))
            .collect(),
        None => entries.iter().map(|name| named(name)).collect(),
    }
}

fn with_resources(mut row: Document, kernel: &KernelResources) -> Document {
    row.insert("registers", i64::from(kernel.registers));
    row.insert("local", i64::from(kernel.local_bytes));
    row.insert("shared", i64::from(kernel.shared_bytes));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCH: Arch = Arch { major: 9, minor: 0 };

    #[test]
    fn a_kernel_that_is_not_compiled_has_a_row_too() {
        let rows = rows_of("scan.cu", &["a".to_owned(), "b".to_owned()], ARCH, None);
        assert_eq!(
            rows,
            [
                doc! { "program": "scan.cu", "kernel": "a", "arch": "sm_90" },
                doc! { "program": "scan.cu", "kernel": "b", "arch": "sm_90" },
            ]
        );
    }
}
