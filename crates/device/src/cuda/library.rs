//! The two libraries that are loaded at run time: the driver (libcuda) and the compiler (libnvrtc).

use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use cudarc::nvrtc::sys as nvrtc;

/// Oldest driver that has all functions called here, in CUDA's numbering: 1000 × major + 10 × minor.
const DRIVER_VERSION_MIN: i32 = 12080;

/// The driver's error name for exhausted memory.
pub(super) const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// A driver call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} failed: {code}")]
pub struct DriverError {
    /// The function of the driver.
    pub operation: &'static str,
    /// The driver's name of the error, as in `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub code: String,
}

/// Why this process cannot use GPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaUnavailable {
    /// The driver's library cannot be loaded.
    #[error(
        "libcuda.so.1 cannot be loaded; install the NVIDIA driver, or use host devices (`host:<count>`)"
    )]
    NoDriver,
    /// The driver lacks required functions.
    #[error("the NVIDIA driver supports CUDA {found}, but {needed} is needed; update the driver")]
    DriverTooOld {
        /// CUDA version of the driver, as in `12.4`.
        found: String,
        /// Oldest supported version.
        needed: String,
    },
    /// The driver is installed but does not work.
    #[error("{0}; check whether `nvidia-smi` works, or use host devices (`host:<count>`)")]
    Failed(#[from] DriverError),
}

/// NVRTC cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "libnvrtc cannot be loaded; install CUDA's runtime compiler (Debian package cuda-nvrtc-13-0, or \
     `pip install nvidia-cuda-nvrtc` and its folder in LD_LIBRARY_PATH)"
)]
pub struct NvrtcMissing;

/// Converts the result code of a driver call to a `Result`.
pub(super) fn check(operation: &'static str, code: CUresult) -> Result<(), DriverError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(DriverError {
            operation,
            code: format!("{code:?}"),
        }),
    }
}

/// Loads and initialises the driver, once for the process. All other driver calls must come after it.
pub(super) fn start_driver() -> Result<(), CudaUnavailable> {
    static DRIVER: OnceLock<Result<(), CudaUnavailable>> = OnceLock::new();
    DRIVER.get_or_init(load_driver).clone()
}

fn load_driver() -> Result<(), CudaUnavailable> {
    // SAFETY: loading the driver's library only runs its own initialisers.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaUnavailable::NoDriver);
    }
    let version = driver_version()?;
    if version < DRIVER_VERSION_MIN {
        return Err(CudaUnavailable::DriverTooOld {
            found: version_text(version),
            needed: version_text(DRIVER_VERSION_MIN),
        });
    }
    // SAFETY: the library is loaded; 0 is the only allowed value.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    Ok(())
}

/// Returns the CUDA version that the driver supports; works before the driver is initialised.
fn driver_version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: the library is loaded, and `version` outlives the call.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    check("cuDriverGetVersion", code)?;
    Ok(version)
}

/// Returns the CUDA version that the driver supports, as in `13.0`. The driver must be initialised.
pub(super) fn driver_version_text() -> Result<String, DriverError> {
    driver_version().map(version_text)
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Returns the version of NVRTC, as in `(13, 0)`.
///
/// # Errors
/// [`NvrtcMissing`] if NVRTC cannot be loaded.
pub fn nvrtc_version() -> Result<(u32, u32), NvrtcMissing> {
    static VERSION: OnceLock<Result<(u32, u32), NvrtcMissing>> = OnceLock::new();
    VERSION.get_or_init(load_nvrtc).clone()
}

fn load_nvrtc() -> Result<(u32, u32), NvrtcMissing> {
    // SAFETY: loading NVRTC only runs its own initialisers.
    if !unsafe { nvrtc::is_culib_present() } {
        return Err(NvrtcMissing);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is loaded, and both numbers outlive the call.
    let code = unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
    match code {
        nvrtc::nvrtcResult::NVRTC_SUCCESS => Ok((major.unsigned_abs(), minor.unsigned_abs())),
        _ => Err(NvrtcMissing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(version_text(13000), "13.0");
        assert_eq!(version_text(12080), "12.8");
    }

    #[test]
    fn a_failed_call_names_itself() {
        let error = check("cuCall", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(
            error.map_err(|error| error.to_string()),
            Err("cuCall failed: CUDA_ERROR_ILLEGAL_ADDRESS".to_owned())
        );
    }
}
