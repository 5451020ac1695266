//! Ctrl-C: stops the answer that is being written if there is one, else the program.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::failure::INTERRUPTED;

/// Work in progress that looks at [`Scope::interrupted`] and ends cleanly.
static SCOPES: AtomicUsize = AtomicUsize::new(0);
static PRESSED: AtomicBool = AtomicBool::new(false);

/// Installs the handler. Without one the system's default applies, which is to end the program.
pub fn install() {
    let handler = || {
        // A second press during work means that the clean end takes too long.
        if SCOPES.load(Ordering::SeqCst) == 0 || PRESSED.swap(true, Ordering::SeqCst) {
            process::exit(INTERRUPTED.into());
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C cannot be caught, so it ends the program at once: {error}");
    }
}

/// While one lives, Ctrl-C is noted instead of ending the program.
#[derive(Debug)]
pub struct Scope(());

impl Scope {
    /// Begins work that Ctrl-C stops cleanly.
    pub fn enter() -> Self {
        if SCOPES.fetch_add(1, Ordering::SeqCst) == 0 {
            PRESSED.store(false, Ordering::SeqCst);
        }
        Scope(())
    }

    /// True once Ctrl-C was pressed.
    pub fn interrupted(&self) -> bool {
        PRESSED.load(Ordering::SeqCst)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_scope_forgets_an_old_interrupt() {
        let scope = Scope::enter();
        PRESSED.store(true, Ordering::SeqCst);
        assert!(scope.interrupted());
        drop(scope);
        assert!(!Scope::enter().interrupted());
    }
}
