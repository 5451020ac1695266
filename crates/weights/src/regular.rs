//! Files that are files: a named pipe lets nobody open it until somebody writes, and a device may have no end.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file.
///
/// # Errors
/// If it is none, or cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let is_file = |about: fs::Metadata| match about.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    };
    is_file(fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Another may have taken its place meanwhile.
    is_file(file.metadata()?)?;
    Ok(file)
}

/// All of a regular file.
///
/// # Errors
/// As [`open_regular`], and if it cannot be read.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_neither_read_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("x"), "y").unwrap();
        assert_eq!(read_regular(&at("x")).unwrap(), b"y");
        assert_eq!(read_regular(&at("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read_regular(folder.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        #[cfg(unix)]
        {
            let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
            assert!(made.success());
            let error = read_regular(&at("pipe")).unwrap_err();
            assert!(error.to_string().contains("no regular file"), "{error}");
            assert!(open_regular(Path::new("/dev/null")).is_err());
        }
    }
}
