//! File names that came from a server, an archive or a catalog: only plain relative ones may be
//! used, and a model's name becomes one folder name in the store.

use crate::{Error, Result, Sha256};

/// Longest component of a path that common file systems take.
const MAX_COMPONENT: usize = 255;
/// Beyond this a folder name is shortened and made unique by a digest.
const MAX_FOLDER: usize = 150;

/// Checks that `name` is a relative path of ordinary components (`a/b.gguf`): no `..`, no leading
/// slash, drive or back-slash, no control characters.
///
/// # Errors
/// [`Error::UnsafeName`], saying that `origin` gave that name.
pub(crate) fn safe_relative<'a>(name: &'a str, origin: &str) -> Result<&'a str> {
    let bad_char = |c: char| c.is_control() || matches!(c, '\\' | ':');
    let bad_part =
        |part: &str| part.is_empty() || part == "." || part == ".." || part.len() > MAX_COMPONENT;
    if name.len() > 1024 || name.contains(bad_char) || name.split('/').any(bad_part) {
        return Err(Error::UnsafeName { name: name.into(), origin: origin.into() });
    }
    Ok(name)
}

/// The last component of a path that [`safe_relative`] accepts.
pub(crate) fn safe_file_name<'a>(path: &'a str, origin: &str) -> Result<&'a str> {
    let path = safe_relative(path, origin)?;
    Ok(path.rsplit('/').next().unwrap_or(path))
}

/// The folder of a model in the store: letters, digits, `.`, `_` and `-` stay, the rest is written
/// `%XX`, so that two names never share a folder.
pub(crate) fn folder_name(model: &str) -> String {
    let mut folder = String::new();
    for byte in model.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => folder.push(byte as char),
            // A leading dot would hide the folder, or leave the store.
            b'.' if !folder.is_empty() => folder.push('.'),
            _ => folder.push_str(&format!("%{byte:02X}")),
        }
    }
    if folder.len() > MAX_FOLDER {
        folder.truncate(80);
        folder = format!("{folder}%-{}", Sha256::of(model.as_bytes()));
    }
    folder
}

/// `text` with everything but unreserved characters and `/` percent-encoded, for use in a URL path.
pub(crate) fn url_path(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'~' | b'/' => {
                out.push(byte as char);
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Undoes percent-encoding; `None` if the result is not UTF-8 or an escape is broken.
pub(crate) fn url_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused() {
        let long = "a".repeat(256);
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            ".",
            "a\0b",
            "a\nb",
            "a\\b",
            "c:x",
            &long,
        ] {
            let error = safe_relative(bad, "test").unwrap_err();
            assert!(matches!(error, Error::UnsafeName { .. }), "{bad:?}");
        }
        assert_eq!(safe_relative("Q4_K_M/a b-00001-of-00002.gguf", "t").unwrap().len(), 30);
        assert_eq!(safe_file_name("Q4/x.gguf", "t").unwrap(), "x.gguf");
    }

    #[test]
    fn folders_stay_inside_and_apart() {
        let names = ["a:b", "a/b", "a%3Ab", "..", ".hidden", "a.b", "https://x/y?z", "é"];
        let folders: Vec<_> = names.iter().map(|name| folder_name(name)).collect();
        for (i, folder) in folders.iter().enumerate() {
            assert!(!folder.starts_with('.') && !folder.contains(['/', ':']), "{folder}");
            assert!(!folders[..i].contains(folder), "{folder}");
        }
        let (a, b) = ("x".repeat(400), "x".repeat(401));
        assert_ne!(folder_name(&a), folder_name(&b));
        assert!(folder_name(&a).len() <= 255);
    }

    #[test]
    fn url_escapes() {
        assert_eq!(url_path("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
        assert_eq!(url_decode("a%20b/%C3%BC").as_deref(), Some("a b/ü"));
        for bad in ["%", "%2", "%zz", "%ff", "%+1"] {
            assert_eq!(url_decode(bad), None, "{bad}");
        }
    }
}
