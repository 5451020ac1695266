//! Where the program keeps what is not a model: the input history and saved chats.

use std::ffi::OsString;
use std::path::PathBuf;

/// The folder, which may not exist yet: `BATON_HOME` if that is set, else the system's place for
/// the data of programs. None if the environment tells of no home.
pub fn data_dir() -> Option<PathBuf> {
    data_dir_from(&|name| std::env::var_os(name))
}

fn data_dir_from(var: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(home) = path("BATON_HOME") {
        return Some(home);
    }
    let fallback =
        if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/share" };
    let data = path("XDG_DATA_HOME")
        .filter(|dir| dir.is_absolute())
        .or_else(|| Some(path("HOME").or_else(std::env::home_dir)?.join(fallback)))?;
    Some(data.join("baton"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Option<PathBuf> {
        data_dir_from(&|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_environment_decides() {
        let default =
            if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/share" };
        let home = PathBuf::from("/h");
        assert_eq!(with(&[("HOME", "/h")]), Some(home.join(default).join("baton")));
        assert_eq!(with(&[("HOME", "/h"), ("XDG_DATA_HOME", "/d")]), Some("/d/baton".into()));
        assert_eq!(with(&[("HOME", "/h"), ("BATON_HOME", "/b")]), Some("/b".into()));
        let relative = [("HOME", "/h"), ("XDG_DATA_HOME", "d")];
        assert_eq!(with(&relative), Some(home.join(default).join("baton")));
    }
}
