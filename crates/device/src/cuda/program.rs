//! Safe wrapper of NVRTC's program object.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// NVRTC's name of the error of a failed call.
#[derive(Debug)]
pub(super) struct NvrtcError {
    pub(super) code: String,
}

fn check(code: nvrtcResult) -> Result<(), NvrtcError> {
    match code {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        code => Err(NvrtcError {
            code: format!("{code:?}"),
        }),
    }
}

/// NVRTC's object for one source. NVRTC must be loaded before one is created.
pub(super) struct Program {
    raw: nvrtcProgram,
}

impl Program {
    /// Creates a program from a source and headers (pairs of name and text). NVRTC copies both.
    pub(super) fn create(
        name: &CStr,
        source: &CStr,
        headers: &[(CString, CString)],
    ) -> Result<Program, NvrtcError> {
        let names: Vec<_> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<_> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: all strings end in NUL and outlive the call; both arrays have the given number of entries.
        check(unsafe {
            sys::nvrtcCreateProgram(
                &mut raw,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        })?;
        Ok(Program { raw })
    }

    /// Requests a kernel by its name in the source, template arguments included. Must be called before compiling.
    pub(super) fn add_entry(&mut self, entry: &CStr) -> Result<(), NvrtcError> {
        // SAFETY: the program is live, and the string outlives the call.
        check(unsafe { sys::nvrtcAddNameExpression(self.raw, entry.as_ptr()) })
    }

    /// Compiles the program. The log can be read afterwards, even if this fails.
    pub(super) fn compile(&mut self, options: &[CString]) -> Result<(), NvrtcError> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is live, and the options end in NUL and outlive the call.
        check(unsafe {
            sys::nvrtcCompileProgram(self.raw, options.len() as c_int, options.as_ptr())
        })
    }

    /// Returns the compiler log.
    pub(super) fn log(&self) -> Result<String, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is live, and `bytes` outlives the call.
        check(unsafe { sys::nvrtcGetProgramLogSize(self.raw, &mut bytes) })?;
        let mut log = vec![0_u8; bytes];
        // SAFETY: the buffer has the size that NVRTC returned.
        check(unsafe { sys::nvrtcGetProgramLog(self.raw, log.as_mut_ptr().cast()) })?;
        let text = String::from_utf8_lossy(&log);
        Ok(text.trim_end_matches('\0').to_owned())
    }

    /// Returns the machine code. Must be called after compiling.
    pub(super) fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is live, and `bytes` outlives the call.
        check(unsafe { sys::nvrtcGetCUBINSize(self.raw, &mut bytes) })?;
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: the buffer has the size that NVRTC returned.
        check(unsafe { sys::nvrtcGetCUBIN(self.raw, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }

    /// Returns an entry's symbol in the machine code. Must be called after compiling.
    pub(super) fn symbol(&self, entry: &CStr) -> Result<String, NvrtcError> {
        let mut symbol = ptr::null();
        // SAFETY: the program is live, and the pointers outlive the call.
        check(unsafe { sys::nvrtcGetLoweredName(self.raw, entry.as_ptr(), &mut symbol) })?;
        // SAFETY: NVRTC returned a string that ends in NUL and lives as long as the program.
        let symbol = unsafe { CStr::from_ptr(symbol) };
        Ok(symbol.to_string_lossy().into_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is live, and is not used afterwards.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.raw) };
    }
}
