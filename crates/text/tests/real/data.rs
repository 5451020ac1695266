//! Where the test data lies.

use std::path::PathBuf;

/// A file in the folder that BATON_TEST_DATA names; none, which the test says, if it is not set.
///
/// # Panics
/// If it is set and the file is not there.
pub fn find(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("BATON_TEST_DATA") else {
        println!("skipped: BATON_TEST_DATA is not set, so {name} is not there");
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    assert!(path.is_file(), "{} is missing; run scripts/test-data.sh", path.display());
    Some(path)
}
