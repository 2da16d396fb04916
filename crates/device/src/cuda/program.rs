//! NVRTC's program object.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// A call of NVRTC that failed: NVRTC's name of the error.
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

/// NVRTC's object for one source. NVRTC has been loaded before one is made.
pub(super) struct Program {
    raw: nvrtcProgram,
}

impl Program {
    /// Makes a program of a source and headers, which are pairs of name and text. Both are copied.
    pub(super) fn create(
        name: &CStr,
        source: &CStr,
        headers: &[(CString, CString)],
    ) -> Result<Program, NvrtcError> {
        let names: Vec<_> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<_> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: all strings end in NUL and live through the call; both arrays have the given number of entries.
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

    /// Requests a kernel by its name in the source, template arguments included. Called before compiling.
    pub(super) fn add_entry(&mut self, entry: &CStr) -> Result<(), NvrtcError> {
        // SAFETY: the program is live, and the string lives through the call.
        check(unsafe { sys::nvrtcAddNameExpression(self.raw, entry.as_ptr()) })
    }

    /// Compiles; afterwards there is a log, also of a failure.
    pub(super) fn compile(&mut self, options: &[CString]) -> Result<(), NvrtcError> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is live, and the options end in NUL and live through the call.
        check(unsafe {
            sys::nvrtcCompileProgram(self.raw, options.len() as c_int, options.as_ptr())
        })
    }

    /// Returns the log of the compiler.
    pub(super) fn log(&self) -> Result<String, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is live, and `bytes` lives through the call.
        check(unsafe { sys::nvrtcGetProgramLogSize(self.raw, &mut bytes) })?;
        let mut log = vec![0_u8; bytes];
        // SAFETY: the buffer has the size that NVRTC returned.
        check(unsafe { sys::nvrtcGetProgramLog(self.raw, log.as_mut_ptr().cast()) })?;
        let text = String::from_utf8_lossy(&log);
        Ok(text.trim_end_matches('\0').to_owned())
    }

    /// Returns the machine code, after compiling.
    pub(super) fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is live, and `bytes` lives through the call.
        check(unsafe { sys::nvrtcGetCUBINSize(self.raw, &mut bytes) })?;
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: the buffer has the size that NVRTC returned.
        check(unsafe { sys::nvrtcGetCUBIN(self.raw, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }

    /// Returns the name of an entry in the machine code, after compiling.
    pub(super) fn symbol(&self, entry: &CStr) -> Result<String, NvrtcError> {
        let mut symbol = ptr::null();
        // SAFETY: the program is live, and the pointers live through the call.
        check(unsafe { sys::nvrtcGetLoweredName(self.raw, entry.as_ptr(), &mut symbol) })?;
        // SAFETY: NVRTC gave a string that ends in NUL and lives as long as the program.
        let symbol = unsafe { CStr::from_ptr(symbol) };
        Ok(symbol.to_string_lossy().into_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is live, and nothing uses it afterwards.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.raw) };
    }
}
