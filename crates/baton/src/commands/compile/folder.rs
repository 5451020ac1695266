//! The folder that is written, whole or not at all.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;

use crate::interrupt::Unfinished;

/// Writes the folder `output`: all of it lies beside its place until it is whole.
pub fn whole_folder<T>(
    output: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let parent = output.parent().filter(|path| !path.as_os_str().is_empty());
    let partial = partial_folder(parent.unwrap_or(Path::new(".")))
        .with_context(|| format!("cannot write beside {}", output.display()))?;
    let partial = Unfinished::new(partial);
    // Errors name the place that was asked for.
    let made = write(partial.path()).map_err(|error| match error.downcast() {
        Ok(error) => baton_coreml::Error::moved(error, partial.path(), output).into(),
        Err(error) => error,
    })?;
    partial.finish(output).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(made)
}

/// A folder that becomes the output, with the permissions that a folder made at once would have.
fn partial_folder(parent: &Path) -> io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".baton-compile-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What the umask leaves of them; otherwise they would be those of something private.
        builder.permissions(fs::Permissions::from_mode(0o777));
    }
    builder.tempdir_in(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_folder_has_the_permissions_of_one_made_at_once() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let plain = parent.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let folder = partial_folder(parent.path()).unwrap();
        assert_eq!(mode(folder.path()), mode(&plain));
    }
}
