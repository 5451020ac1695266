//! Ctrl-C: stops the answer that is being written if there is one, else the program.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io, process};

use baton_engine::CancelToken;
use tempfile::TempDir;

use crate::failure::INTERRUPTED;

/// Work in progress that looks at [`Scope::interrupted`] and ends cleanly.
static SCOPES: AtomicUsize = AtomicUsize::new(0);
static PRESSED: AtomicBool = AtomicBool::new(false);
/// Folders that are removed before the program ends.
static LEFTOVERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// What is cancelled at once, though the work waits for something else.
static TOKEN: Mutex<Option<CancelToken>> = Mutex::new(None);

/// Installs the handler. Without one the system's default applies, which is to end the program.
pub fn install() {
    let handler = || {
        // A second press during work means that the clean end takes too long.
        if SCOPES.load(Ordering::SeqCst) == 0 || PRESSED.swap(true, Ordering::SeqCst) {
            let leftovers = leftovers();
            leftovers.iter().for_each(|folder| remove(folder));
            // Before anybody can make one of them more than a leftover.
            process::exit(INTERRUPTED.into());
        }
        if let Some(token) = &*token() {
            token.cancel();
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C cannot be caught, so it ends the program at once: {error}");
    }
}

fn token() -> MutexGuard<'static, Option<CancelToken>> {
    TOKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn leftovers() -> MutexGuard<'static, Vec<PathBuf>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a folder in which something may still be written.
fn remove(folder: &Path) {
    // What appears behind the back of the first try is there at the next; then it is left alone.
    let _ = (0..5).any(|_| fs::remove_dir_all(folder).is_ok() || !folder.exists());
}

/// A folder that is removed if the work in it fails, or Ctrl-C ends the program meanwhile.
#[derive(Debug)]
pub struct Unfinished(TempDir);

impl Unfinished {
    /// Takes charge of the folder that is made. Ctrl-C comes before that or behind it, so that none is made of which
    /// it does not know.
    ///
    /// # Errors
    /// Those of making it.
    pub fn make(make: impl FnOnce() -> io::Result<TempDir>) -> io::Result<Self> {
        let mut leftovers = leftovers();
        let folder = make()?;
        leftovers.push(folder.path().to_owned());
        Ok(Unfinished(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Gives it its name; from then on it is finished.
    ///
    /// # Errors
    /// If it cannot be renamed; it is removed then.
    pub fn finish(self, target: &Path) -> io::Result<()> {
        let mut leftovers = leftovers();
        fs::rename(self.path(), target)?;
        leftovers.retain(|path| path != self.0.path());
        Ok(())
    }
}

/// While one lives, Ctrl-C is noted instead of ending the program.
#[derive(Debug)]
pub struct Scope {
    cancels: bool,
}

impl Scope {
    /// Begins work that Ctrl-C stops cleanly.
    pub fn enter() -> Self {
        if SCOPES.fetch_add(1, Ordering::SeqCst) == 0 {
            PRESSED.store(false, Ordering::SeqCst);
        }
        Scope { cancels: false }
    }

    /// As [`Scope::enter`], for work that looks at a token; there is one such at a time.
    pub fn cancelling(cancel: &CancelToken) -> Self {
        *token() = Some(cancel.clone());
        let mut scope = Self::enter();
        scope.cancels = true;
        scope
    }

    /// True once Ctrl-C was pressed.
    pub fn interrupted(&self) -> bool {
        PRESSED.load(Ordering::SeqCst)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if self.cancels {
            *token() = None;
        }
        SCOPES.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unfinished_is_removed_and_what_is_finished_stays() {
        let parent = tempfile::tempdir().unwrap();
        let unfinished = || {
            let folder = tempfile::tempdir_in(parent.path()).unwrap();
            fs::write(folder.path().join("x"), "y").unwrap();
            Unfinished::make(|| Ok(folder)).unwrap()
        };
        let is_known = |path: &Path| leftovers().iter().any(|known| known == path);
        let (first, second) = (unfinished(), unfinished());
        let (left, kept) = (first.path().to_owned(), second.path().to_owned());
        assert!(is_known(&left) && is_known(&kept));
        second.finish(&parent.path().join("done")).unwrap();
        remove(&left);
        drop(first);
        assert!(!is_known(&kept) && parent.path().join("done/x").exists());
        let failed = unfinished();
        let path = failed.path().to_owned();
        assert!(failed.finish(&parent.path().join("no/such/folder")).is_err());
        assert!(!path.exists() && !left.exists());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_new_scope_forgets_an_old_interrupt() {
        let scope = Scope::enter();
        PRESSED.store(true, Ordering::SeqCst);
        assert!(scope.interrupted());
        drop(scope);
        assert!(!Scope::enter().interrupted());
    }
}
