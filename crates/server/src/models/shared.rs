//! What all handles to the models share: the store, the models in memory, and what is known of each.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_hub::{Custom, LocalModel, Reference, Store};
use tokio::sync::Semaphore;

use super::load::Loading;
use super::pool::{Keeper, Pool};
use super::{Facts, ModelOptions, name};
use crate::{ApiError, Kind, Result};

/// Downloads at the same time; more wait.
const MAX_PULLS: usize = 3;

pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) options: ModelOptions,
    /// Models outside of the store that whoever started the server named by their paths.
    given: Mutex<BTreeMap<String, LocalModel>>,
    /// The draft models of those that have one.
    drafts: Mutex<BTreeMap<String, PathBuf>>,
    facts: Mutex<HashMap<String, (Stamp, Arc<Facts>)>>,
    pub(super) pool: Pool,
    _keeper: Keeper,
    pub(super) loading: Loading,
    pub(super) pulls: Semaphore,
}

/// Tells a model's files and settings from those of another time.
type Stamp = (PathBuf, u64, Option<u64>, Option<Custom>);

impl Shared {
    pub(super) fn new(store: Store, options: ModelOptions) -> Result<Shared> {
        let (pool, keeper) = Pool::new()?;
        Ok(Shared {
            store,
            options,
            given: Mutex::default(),
            drafts: Mutex::default(),
            facts: Mutex::default(),
            pool,
            _keeper: keeper,
            loading: Loading::default(),
            pulls: Semaphore::new(MAX_PULLS),
        })
    }

    /// The one spelling of a name.
    pub(super) fn key(&self, name: &str) -> Result<String> {
        let lower = name.trim().to_lowercase();
        let lower = lower.strip_suffix(":latest").unwrap_or(&lower);
        if self.given().contains_key(lower) {
            return Ok(lower.to_owned());
        }
        match name::parse(name) {
            Some(Reference::Name(name)) => {
                Ok(self.store.catalog().get(&name).map_or(name, |entry| entry.name.clone()))
            }
            Some(reference) => Ok(reference.to_string()),
            None => {
                let message = format!("model {name:?} not found");
                Err(ApiError { kind: Kind::NoModel, message, param: Some("model".into()) })
            }
        }
    }

    /// The model's files, if they are here and whole.
    pub(super) fn find(&self, key: &str) -> Result<LocalModel> {
        if let Some(local) = self.given().get(key) {
            return Ok(local.clone());
        }
        match self.store.find(key)? {
            Some(local) => Ok(local),
            None => Err(self.not_found(key)),
        }
    }

    fn not_found(&self, name: &str) -> ApiError {
        let hint = match self.store.resolve(name) {
            Err(baton_hub::Error::UnknownModel { near, .. }) if !near.is_empty() => {
                format!("; did you mean {}?", near.join(" or "))
            }
            Err(_) => String::new(),
            Ok(_) => ", try pulling it first".into(),
        };
        let message = format!("model {name:?} not found{hint}");
        ApiError { kind: Kind::NoModel, message, param: Some("model".into()) }
    }

    pub(super) fn absent(&self, name: &str, error: ApiError) -> ApiError {
        if error.kind == Kind::NoModel { self.not_found(name) } else { error }
    }

    pub(super) fn facts_of(&self, key: &str, local: &LocalModel) -> Result<Arc<Facts>> {
        let stamp: Stamp = (local.path.clone(), local.size, local.fetched_at, local.custom.clone());
        let known = self.known_facts().get(key).filter(|(then, _)| *then == stamp).cloned();
        if let Some((_, facts)) = known {
            return Ok(facts);
        }
        let facts = Arc::new(Facts::gather(local, self.store.catalog().get(key))?);
        self.known_facts().insert(key.to_owned(), (stamp, Arc::clone(&facts)));
        Ok(facts)
    }

    /// A panic elsewhere leaves no entry half written.
    pub(super) fn given(&self) -> MutexGuard<'_, BTreeMap<String, LocalModel>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As above.
    pub(super) fn drafts(&self) -> MutexGuard<'_, BTreeMap<String, PathBuf>> {
        self.drafts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_facts(&self) -> MutexGuard<'_, HashMap<String, (Stamp, Arc<Facts>)>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what may wait for the disk or compute for long in a thread where that holds nobody up.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&shared)).await;
        done.unwrap_or_else(|panic| Err(ApiError::internal(panic)))
    }
}

impl From<baton_hub::Error> for ApiError {
    fn from(error: baton_hub::Error) -> Self {
        use baton_hub::Error;
        let kind = match &error {
            Error::UnknownModel { .. } | Error::NotInstalled { .. } | Error::Offline { .. } => {
                Kind::NoModel
            }
            Error::NotFound { .. } => Kind::NotFound,
            Error::BadReference { .. }
            | Error::NoSuchQuant { .. }
            | Error::SeveralModels { .. }
            | Error::NoModelFiles { .. }
            | Error::NoSuchPath { .. }
            | Error::NoModelAtPath { .. } => Kind::Invalid,
            Error::Unreachable { .. }
            | Error::Dropped { .. }
            | Error::Status { .. }
            | Error::Gated { .. }
            | Error::RateLimited { .. }
            | Error::BadResponse { .. }
            | Error::AllSourcesFailed { .. } => Kind::Upstream,
            Error::DiskFull { .. } => Kind::Unavailable,
            _ => Kind::Internal,
        };
        ApiError::new(kind, error.to_string())
    }
}
