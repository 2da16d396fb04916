//! Resources that a kernel uses, read from the assembler's log.

use serde::{Deserialize, Serialize};

/// A compiled kernel's names and resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelResources {
    /// Name in the source, template arguments included.
    pub name: String,
    /// Symbol in the machine code.
    pub symbol: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread: dynamically indexed arrays and spilled registers.
    pub local_bytes: u32,
    /// Bytes of static shared memory per block.
    pub shared_bytes: u32,
}

impl KernelResources {
    /// Parses the assembler's log (`-v`) for the kernel with this symbol; numbers missing in the log are zero.
    pub(super) fn read(name: String, symbol: String, log: &str) -> KernelResources {
        let report = Report::of(&symbol, log);
        KernelResources {
            registers: report.number_before(" registers"),
            local_bytes: report
                .number_before(" bytes stack frame")
                .max(report.number_before(" bytes cumulative stack size")),
            shared_bytes: report.number_before(" bytes smem"),
            name,
            symbol,
        }
    }
}

/// The lines of the log about one kernel.
struct Report<'a> {
    lines: Vec<&'a str>,
}

impl<'a> Report<'a> {
    fn of(symbol: &str, log: &'a str) -> Report<'a> {
        let quoted = format!("'{symbol}'");
        let is_begin = |line: &str| line.contains("Compiling entry function");
        let after = log
            .lines()
            .skip_while(|line| !(is_begin(line) && line.contains(&quoted)));
        let lines = after.skip(1).take_while(|line| !is_begin(line)).collect();
        Report { lines }
    }

    fn number_before(&self, unit: &str) -> u32 {
        let before = |line: &&str| -> Option<u32> {
            let (head, _) = line.split_once(unit)?;
            head.rsplit([' ', ',']).next()?.parse().ok()
        };
        self.lines.iter().find_map(before).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1tILi32EEv1A' for 'sm_90'
ptxas info    : Function properties for _Z1tILi32EEv1A
ptxas         .     128 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 136 bytes cumulative stack size
ptxas info    : Compile time = 12.237 ms
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem
";

    fn read(symbol: &str) -> (u32, u32, u32) {
        let found = KernelResources::read("name".to_owned(), symbol.to_owned(), LOG);
        (found.registers, found.local_bytes, found.shared_bytes)
    }

    #[test]
    fn each_kernel_has_its_own_lines() {
        assert_eq!(read("_Z1tILi32EEv1A"), (24, 136, 0));
        assert_eq!(read("k"), (12, 0, 256));
        assert_eq!(read("absent"), (0, 0, 0));
    }
}
