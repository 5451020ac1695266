//! Core ML itself, as a [`Platform`]: the one part of Baton that can only run on macOS.
//!
//! It is kept thin. What is loaded for which units, where compiled packages are kept, which arrays are
//! bound to what and when, is decided in [`baton_coreml::runtime`], on every machine and tested there. On
//! other systems this crate is empty but for the reason why.
#![cfg_attr(not(target_os = "macos"), forbid(unsafe_code))]

#[cfg(target_os = "macos")]
mod mac;

use std::sync::Arc;

use baton_coreml::runtime::Platform;

/// This machine's Core ML.
///
/// # Errors
/// The reason why there is none.
pub fn platform() -> Result<Arc<dyn Platform>, &'static str> {
    #[cfg(target_os = "macos")]
    return mac::platform();
    #[cfg(not(target_os = "macos"))]
    Err("Core ML and the Neural Engine are there on a Mac only")
}

#[cfg(all(test, not(target_os = "macos")))]
mod tests {
    #[test]
    fn elsewhere_there_is_no_core_ml() {
        assert!(super::platform().unwrap_err().contains("on a Mac only"));
    }
}
