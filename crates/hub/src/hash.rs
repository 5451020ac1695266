//! SHA-256 digests: parsing, printing, computing over a file.

use std::fmt;
use std::io::Read;

use serde::{Deserialize, Serialize};
use sha2::Digest;

/// A SHA-256 digest; prints and parses as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// Reads 64 hexadecimal digits, of either case.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    pub(crate) fn finish(hasher: sha2::Sha256) -> Self {
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Sha256 {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not a SHA-256 in hexadecimal"))
    }
}

impl From<Sha256> for String {
    fn from(digest: Sha256) -> String {
        digest.to_string()
    }
}

/// Feeds `reader` to `hasher` until its end, calling `step` with the bytes hashed so far; returns
/// their number. `step` returning false stops early.
pub(crate) fn hash_reader(
    reader: &mut impl Read,
    hasher: &mut sha2::Sha256,
    mut step: impl FnMut(u64) -> bool,
) -> std::io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(done),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                done += n as u64;
                if !step(done) {
                    return Ok(done);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_test_vectors() {
        // FIPS 180-2, appendix B.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256::of(b"abc").to_string(), abc);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256::of(b"").to_string(), empty);
        assert_eq!(Sha256::parse(&abc.to_uppercase()), Some(Sha256::of(b"abc")));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        for bad in ["", "12", &"g".repeat(64), &"é".repeat(32), &"+f".repeat(32), &"a".repeat(65)]
        {
            assert_eq!(Sha256::parse(bad), None, "{bad:?}");
        }
    }
}
