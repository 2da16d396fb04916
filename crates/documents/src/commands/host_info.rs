//! `hostInfo`: describes the machine.

use bson::{DateTime, rawdoc};

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::host;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "hostInfo",
    help: "describes the machine",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let memory_mib = (forebay_memory::machine_bytes() >> 20) as i64;
    Ok(rawdoc! {
        "system": {
            "currentTime": DateTime::now(),
            "hostname": host::name(),
            "cpuAddrSize": usize::BITS as i32,
            "memSizeMB": memory_mib,
            "memLimitMB": memory_mib,
            "numCores": forebay_device::cores() as i32,
            "cpuArch": std::env::consts::ARCH,
            "numaEnabled": false,
        },
        "os": { "type": os_type(), "name": std::env::consts::OS, "version": host::kernel_release() },
        "extra": {},
        "ok": 1.0,
    })
}

fn os_type() -> &'static str {
    match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        other => other,
    }
}
