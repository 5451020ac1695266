//! The Hugging Face hub: listing a repository, the address of a file, which files make a model.

pub(crate) mod cache;
pub(crate) mod select;

use serde::Deserialize;
use ureq::http::HeaderMap;

use crate::http::{Client, bad_response};
use crate::names::url_path;
use crate::{HfRef, Progress, Result, Sha256};

/// The hub lists a thousand files per page.
const MAX_PAGES: usize = 50;

/// A file of a repository, as the hub or a cache lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// Path in the repository.
    pub path: String,
    /// Bytes.
    pub size: Option<u64>,
    /// Stated for large files only.
    pub sha256: Option<Sha256>,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: Option<String>,
    size: Option<u64>,
}

/// Asks the hub for all files of a repository.
pub(crate) fn list(
    client: &Client,
    endpoint: &str,
    hf: &HfRef,
    progress: &mut dyn Progress,
) -> Result<Vec<RemoteFile>> {
    let what = match &hf.revision {
        Some(revision) => format!("{} at revision {revision}", hf.repo),
        None => hf.repo.clone(),
    };
    let revision = url_path(hf.revision()).replace('/', "%2F");
    let first = format!("{endpoint}/api/models/{}/tree/{revision}?recursive=true", hf.repo);
    let mut files = Vec::new();
    let mut next = Some(first.clone());
    for _ in 0..MAX_PAGES {
        let Some(url) = next else { return Ok(files) };
        let (entries, headers): (Vec<TreeEntry>, _) = client.get_json(&url, &what, progress)?;
        files.extend(entries.into_iter().filter(|entry| entry.kind == "file").map(|entry| {
            let lfs = entry.lfs.as_ref();
            let digest = lfs
                .and_then(|lfs| lfs.oid.as_deref())
                .and_then(|oid| Sha256::parse(oid.strip_prefix("sha256:").unwrap_or(oid)));
            let size = lfs.and_then(|lfs| lfs.size).or(entry.size);
            RemoteFile { path: entry.path, size, sha256: digest }
        }));
        next = next_page(&headers, endpoint);
    }
    Err(bad_response(&first, "a listing without end"))
}

/// The address in a `Link: <…>; rel="next"` header, if it belongs to the same hub.
fn next_page(headers: &HeaderMap, endpoint: &str) -> Option<String> {
    let link = headers.get("link")?.to_str().ok()?;
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let url = next.split_once('<')?.1.split_once('>')?.0;
    // Behind a mirror the link may name the original hub; ask the mirror.
    let path = &url[url.find("/api/")?..];
    Some(format!("{endpoint}{path}"))
}

/// Where the bytes of `path` are.
pub(crate) fn file_url(endpoint: &str, hf: &HfRef, path: &str) -> String {
    let revision = url_path(hf.revision()).replace('/', "%2F");
    format!("{endpoint}/{}/resolve/{revision}/{}", hf.repo, url_path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_escaped() {
        let hf: HfRef = "o/r@refs/pr/1:a b.gguf".parse().unwrap();
        let url = file_url("http://h", &hf, "x y/ü.gguf");
        assert_eq!(url, "http://h/o/r/resolve/refs%2Fpr%2F1/x%20y/%C3%BC.gguf");
    }

    #[test]
    fn the_next_page_stays_at_the_endpoint() {
        let mut headers = HeaderMap::new();
        assert_eq!(next_page(&headers, "http://h"), None);
        let link = "<https://evil.org/api/models/o/r/tree/main?cursor=x>; rel=\"next\"";
        headers.insert("link", link.parse().unwrap());
        let next = next_page(&headers, "http://h").unwrap();
        assert_eq!(next, "http://h/api/models/o/r/tree/main?cursor=x");
    }
}
