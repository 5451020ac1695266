//! A model in memory, and what works for it.

use std::sync::Arc;
use std::time::Instant;

use baton_engine::{
    Embedder, Engine, Load, LoadOptions, MemoryPlan, Sampling, Scheduler, SchedulerOptions,
};
use baton_models::Model;
use baton_text::Tokenizer;
use tokio::sync::Semaphore;

use super::Facts;
use crate::{ApiError, Result};

/// A model in memory.
#[derive(Debug)]
pub struct Loaded {
    /// Its name.
    pub name: String,
    /// What it is.
    pub facts: Arc<Facts>,
    /// What the user has set for it, or its files or the catalog recommend, of sampling.
    pub recommended: Sampling,
    works: Works,
}

#[derive(Debug)]
enum Works {
    /// It writes text.
    Text(Scheduler),
    /// It makes vectors.
    Vectors(Vectorizer),
}

/// An embedding model, and the order in which requests come to it.
#[derive(Debug)]
pub struct Vectorizer {
    /// The model.
    pub embedder: Embedder,
    /// One permit for each request that may be here, working or waiting.
    pub places: Arc<Semaphore>,
    /// One permit: requests work one after the other.
    pub turn: Arc<Semaphore>,
}

impl Loaded {
    /// Loads a model whose files are open.
    ///
    /// # Errors
    /// If something is wrong with them, or memory is short.
    pub(super) fn new(
        name: String,
        facts: Arc<Facts>,
        model: &Model,
        options: &LoadOptions,
        requests: SchedulerOptions,
        started: Instant,
    ) -> Result<Loaded> {
        let works = if facts.capabilities.embedding {
            let places = requests.max_waiting.saturating_add(1).min(Semaphore::MAX_PERMITS);
            Works::Vectors(Vectorizer {
                embedder: Embedder::from_model(model, options, started)?,
                places: Arc::new(Semaphore::new(places)),
                turn: Arc::new(Semaphore::new(1)),
            })
        } else {
            Works::Text(Scheduler::new(Engine::from_model(model, options, started)?, requests)?)
        };
        let recommended = facts.recommended.clone();
        Ok(Loaded { name, facts, recommended, works })
    }

    /// What makes its answers.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) for a model that writes no text.
    pub fn scheduler(&self) -> Result<&Scheduler> {
        match &self.works {
            Works::Text(scheduler) => Ok(scheduler),
            Works::Vectors(_) => {
                let problem = format!("{} makes vectors of texts and cannot answer", self.name);
                Err(ApiError::invalid("model", problem))
            }
        }
    }

    /// What makes its vectors.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) for a model that makes none.
    pub fn vectorizer(&self) -> Result<&Vectorizer> {
        match &self.works {
            Works::Vectors(vectorizer) => Ok(vectorizer),
            Works::Text(_) => {
                let problem = format!("{} is not an embedding model", self.name);
                Err(ApiError::invalid("model", problem))
            }
        }
    }

    /// The model with its tokenizer and its templates.
    ///
    /// # Errors
    /// As [`Loaded::scheduler`].
    pub fn engine(&self) -> Result<&Engine> {
        Ok(self.scheduler()?.engine())
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// If it has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        match &self.works {
            Works::Text(scheduler) => Ok(scheduler.engine().tokenizer()?),
            Works::Vectors(vectorizer) => Ok(&vectorizer.embedder.traits().tokenizer),
        }
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        match &self.works {
            Works::Text(scheduler) => scheduler.load(),
            Works::Vectors(_) => Load::default(),
        }
    }

    /// Tokens that a prompt and its answer can have together, or a text to make a vector of.
    pub fn context_length(&self) -> usize {
        match &self.works {
            Works::Text(scheduler) => scheduler.engine().limits().context,
            Works::Vectors(vectorizer) => vectorizer.embedder.context(),
        }
    }

    /// What it was expected to need of memory.
    pub fn memory(&self) -> &MemoryPlan {
        match &self.works {
            Works::Text(scheduler) => &scheduler.engine().traits().memory,
            Works::Vectors(vectorizer) => &vectorizer.embedder.traits().memory,
        }
    }
}
