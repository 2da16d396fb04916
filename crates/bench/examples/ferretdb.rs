//! Prints the path of FerretDB's binary, built on first use: for the driver tests, which compare with it.

fn main() -> anyhow::Result<()> {
    println!("{}", forebay_bench::rivals::ferretdb::binary()?.display());
    Ok(())
}
