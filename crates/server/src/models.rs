//! The models that requests ask for by name: finding them, loading them on demand, unloading them,
//! and getting new ones.
//!
//! A request holds a [`Lease`] of its model for as long as it works with it. A model that nobody
//! holds is unloaded after its keep-alive time, or when its memory is needed for another. What a
//! request asks for is what answers, or nothing does.

mod defaults;
mod facts;
mod keep_alive;
mod load;
mod loaded;
pub(crate) mod name;
mod pool;
mod pull;
mod shared;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_engine::{LoadOptions, SchedulerOptions};
use baton_hub::{Catalog, Custom, LocalModel, Reference, Store};

pub use defaults::Defaults;
pub(crate) use facts::Details;
pub use facts::{Capabilities, Facts};
pub use keep_alive::KeepAlive;
pub use loaded::Loaded;
pub use pool::{Lease, Running};
pub use pull::Pulling;
use shared::Shared;

use crate::{ApiError, Kind, Result};

/// A model that was taken away again before the request got hold of it is loaded this often.
const ATTEMPTS: usize = 3;

/// How models are loaded and how long they stay.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// How each is loaded.
    pub load: LoadOptions,
    /// How many requests each takes.
    pub scheduler: SchedulerOptions,
    /// How long one stays after its last request, unless that request says.
    pub keep_alive: KeepAlive,
    /// Most models in memory at the same time.
    pub max_models: usize,
    /// Most bytes of memory for all models; by default what the system can give.
    pub memory: Option<u64>,
    /// Where caches of models are saved on request; nowhere if none.
    pub cache_folder: Option<PathBuf>,
    /// How long a request waits for others to end if their models fill the memory.
    pub patience: Duration,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            load: LoadOptions::default(),
            scheduler: SchedulerOptions::default(),
            keep_alive: KeepAlive::For(Duration::from_secs(5 * 60)),
            max_models: 3,
            memory: None,
            cache_folder: None,
            patience: Duration::from_secs(60),
        }
    }
}

/// All models that this server can use. Clones are the same.
#[derive(Clone)]
pub struct Models {
    shared: Arc<Shared>,
}

/// A model on this machine.
#[derive(Clone, Debug)]
pub struct Installed {
    /// Its name.
    pub name: String,
    /// Its files.
    pub local: LocalModel,
    /// What it is; `None` for files that Baton does not understand.
    pub facts: Option<Arc<Facts>>,
}

/// What a request wants of the model besides that it is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// How long it is to stay afterwards.
    pub keep_alive: Option<KeepAlive>,
    /// Tokens that a prompt and its answer must have room for together. A model that was loaded for
    /// fewer is loaded again, with as many as it was trained for at the most.
    pub context: Option<usize>,
}

impl Models {
    /// Models from a store, none of them loaded.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn new(store: Store, options: ModelOptions) -> Result<Models> {
        Ok(Models { shared: Arc::new(Shared::new(store, options)?) })
    }

    /// Adds a model outside of the store, under the name of its file; gives that name. Only for
    /// paths that whoever started the server named.
    ///
    /// # Errors
    /// If there is no model at this path.
    pub async fn give(&self, path: PathBuf) -> Result<String> {
        let local = self.shared.blocking(move |shared| {
            Ok(shared.store.get(&Reference::Path(path), &mut baton_hub::Silent)?)
        });
        let local = local.await?;
        let stem = local.path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name: String = stem.chars().map(|c| if word(c) { c } else { '-' }).collect();
        self.shared.given().insert(name.clone(), local);
        Ok(name)
    }

    /// Makes the model at `path` the one that guesses what `name` writes, from the next time on that
    /// this is loaded.
    ///
    /// # Errors
    /// [`Kind::NoModel`] if `name` can be no name.
    pub fn set_draft(&self, name: &str, path: PathBuf) -> Result<()> {
        let key = self.shared.key(name)?;
        self.shared.drafts().insert(key, path);
        Ok(())
    }

    /// The names that can be fetched.
    pub fn catalog(&self) -> &Catalog {
        self.shared.store.catalog()
    }

    /// How models are loaded and how long they stay.
    pub fn options(&self) -> &ModelOptions {
        &self.shared.options
    }

    /// The model of that name; loads it if it is not in memory.
    ///
    /// # Errors
    /// [`Kind::NoModel`] if it is not on this machine, [`Kind::Unavailable`] if there is no room for
    /// it, or what is wrong with its files.
    pub async fn lease(&self, name: &str, keep_alive: Option<KeepAlive>) -> Result<Lease> {
        self.lease_with(name, Wish { keep_alive, ..Wish::default() }).await
    }

    /// As [`Models::lease`], with more to wish for.
    ///
    /// # Errors
    /// As [`Models::lease`].
    pub async fn lease_with(&self, name: &str, wish: Wish) -> Result<Lease> {
        let key = self.shared.key(name)?;
        for _ in 0..ATTEMPTS {
            if let Some(lease) = self.shared.pool.take(&key, &wish) {
                return Ok(lease);
            }
            load::load(&self.shared, &key, wish.context).await?;
        }
        let problem = format!("the memory for {name} is wanted by others; try again later");
        Err(ApiError::new(Kind::Unavailable, problem))
    }

    /// As [`Models::lease`], of the [usual](Models::usual) model if none is named.
    ///
    /// # Errors
    /// As [`Models::lease`] and [`Models::usual`].
    pub async fn lease_usual(&self, name: Option<&str>) -> Result<Lease> {
        self.lease(&self.usual(name).await?, None).await
    }

    /// The model that a request means: the one that it names, else the one that is in memory, else
    /// the only one that is installed.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if it is not clear which one is meant.
    pub async fn usual(&self, name: Option<&str>) -> Result<String> {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            return Ok(name.to_owned());
        }
        let running = self.running();
        if let [one] = &running[..] {
            return Ok(one.loaded.name.clone());
        }
        if running.is_empty()
            && let [one] = &self.installed().await?[..]
        {
            return Ok(one.name.clone());
        }
        let problem = "there are several models, or none; name one as `model`";
        Err(ApiError::invalid("model", problem))
    }

    /// The one spelling of a model's name, which lists have it under.
    ///
    /// # Errors
    /// [`Kind::NoModel`] if it can be no name.
    pub fn canonical(&self, name: &str) -> Result<String> {
        self.shared.key(name)
    }

    /// The models in memory, in the order of their names.
    pub fn running(&self) -> Vec<Running> {
        self.shared.pool.running()
    }

    /// The models on this machine, in the order of their names.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn installed(&self) -> Result<Vec<Installed>> {
        let list = self.shared.blocking(|shared| {
            let given = shared.given().clone();
            let stored = shared.store.list()?.into_iter().filter(|local| local.complete);
            let mut all: BTreeMap<String, LocalModel> =
                stored.map(|local| (local.name.clone(), local)).collect();
            all.extend(given);
            let installed = |(name, local): (String, LocalModel)| {
                let facts = shared.facts_of(&name, &local).ok();
                Installed { name, local, facts }
            };
            Ok(all.into_iter().map(installed).collect())
        });
        list.await
    }

    /// What is known of a model on this machine.
    ///
    /// # Errors
    /// [`Kind::NoModel`] if it is not here, or what is wrong with its files.
    pub async fn facts(&self, name: &str) -> Result<Arc<Facts>> {
        let key = self.shared.key(name)?;
        let facts = self.shared.blocking(move |shared| {
            let local = shared.find(&key)?;
            shared.facts_of(&key, &local)
        });
        facts.await
    }

    /// Everything that a model's files say of it.
    ///
    /// # Errors
    /// As [`Models::facts`].
    pub(crate) async fn details(&self, name: &str, verbose: bool) -> Result<Details> {
        let key = self.shared.key(name)?;
        self.shared.blocking(move |shared| Details::read(&shared.find(&key)?, verbose)).await
    }

    /// Gives a model of the store a further name.
    ///
    /// # Errors
    /// [`Kind::NoModel`] if it is not in the store, [`Kind::Invalid`] for a name that cannot be
    /// given.
    pub async fn copy(&self, source: &str, name: &str) -> Result<()> {
        self.create(source, name, None).await
    }

    /// Makes a model of the user's own: another one of the store, with settings.
    ///
    /// # Errors
    /// As [`Models::copy`].
    pub async fn create(&self, from: &str, name: &str, custom: Option<Custom>) -> Result<()> {
        let (source, name) = (self.shared.key(from)?, name.to_owned());
        if name.trim() != name {
            return Err(ApiError::invalid("destination", format!("{name:?} can be no name")));
        }
        if self.shared.given().contains_key(&name) {
            let problem = format!("{name:?} is the name of a file of the user's");
            return Err(ApiError::invalid("destination", problem));
        }
        // Nobody may be loading what is replaced.
        let _turn = self.shared.loading.turn().await;
        let copied =
            self.shared.blocking(move |shared| Ok(shared.store.copy(&source, &name, custom)?.name));
        let name = copied.await.map_err(|error| self.shared.absent(from, error))?;
        self.shared.pool.dismiss(&name);
        Ok(())
    }

    /// Unloads a model as soon as nobody uses it; false if it is not in memory.
    pub async fn unload(&self, name: &str) -> bool {
        self.shared.key(name).is_ok_and(|key| self.shared.pool.dismiss(&key))
    }

    /// Deletes a model from the store, and unloads it as soon as nobody uses it; gives the bytes
    /// that this freed on disk.
    ///
    /// # Errors
    /// [`Kind::NoModel`] if it is not in the store.
    pub async fn delete(&self, name: &str) -> Result<u64> {
        let key = self.shared.key(name)?;
        // Nobody may be loading what goes.
        let _turn = self.shared.loading.turn().await;
        let gone = key.clone();
        let freed = self.shared.blocking(move |shared| match shared.given().contains_key(&gone) {
            true => {
                let problem =
                    format!("{gone:?} is a file of the user's; it is not the server's to delete");
                Err(ApiError::invalid("model", problem))
            }
            false => Ok(shared.store.remove(&gone)?),
        });
        let freed = freed.await.map_err(|error| self.shared.absent(name, error))?;
        self.shared.pool.dismiss(&key);
        Ok(freed)
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models").field("options", self.options()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
