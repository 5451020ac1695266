//! Bringing a model into memory: one at a time, and only where there is room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use baton_engine::{
    LoadOptions, MemoryPlan, SchedulerOptions, available_memory, open_model, plan_memory,
};
use baton_hub::LocalModel;
use baton_models::Model;
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::{Facts, Loaded, Shared};
use crate::{ApiError, Kind, Result};

/// What is being loaded, and how that ended.
#[derive(Default)]
pub(super) struct Loading {
    running: Mutex<HashMap<String, watch::Receiver<Option<Result<()>>>>>,
    /// Held while one is loaded: two that are loaded at once would both count on the same memory.
    turn: tokio::sync::Mutex<()>,
}

impl Loading {
    /// Waits until nothing is being loaded, and keeps it so.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// A panic elsewhere leaves no entry half written.
    fn running(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<Option<Result<()>>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads a model, or waits for whoever is loading it already. It goes on if the caller does not
/// wait: the next request will want the model too.
pub(super) async fn load(shared: &Arc<Shared>, key: &str, context: Option<usize>) -> Result<()> {
    let mut outcome = {
        let mut running = shared.loading.running();
        match running.get(key) {
            Some(outcome) => outcome.clone(),
            None => {
                let (tell, outcome) = watch::channel(None);
                running.insert(key.to_owned(), outcome.clone());
                let (shared, key) = (Arc::clone(shared), key.to_owned());
                tokio::spawn(async move {
                    let result = bring(&shared, &key, context).await;
                    shared.loading.running().remove(&key);
                    tell.send_replace(Some(result));
                });
                outcome
            }
        }
    };
    match outcome.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or(Ok(())),
        Err(_) => Err(ApiError::internal("the server ended while the model was loaded")),
    }
}

async fn bring(shared: &Arc<Shared>, key: &str, context: Option<usize>) -> Result<()> {
    let _turn = shared.loading.turn().await;
    // One that was loaded for a smaller context.
    shared.pool.dismiss(key);
    let name = key.to_owned();
    let opened = shared.blocking(move |shared| {
        let local = shared.find(&name)?;
        Opened::open(shared, name, &local, context)
    });
    let opened = opened.await?;
    make_room(shared, &opened).await?;
    let scheduler = shared.options.scheduler;
    let loaded = shared.blocking(move |_| opened.load(scheduler)).await?;
    shared.pool.insert(loaded, shared.options.keep_alive);
    Ok(())
}

/// A model whose files are open.
struct Opened {
    name: String,
    model: Model,
    facts: Arc<Facts>,
    options: LoadOptions,
    plan: MemoryPlan,
    started: Instant,
}

impl Opened {
    fn open(
        shared: &Shared,
        name: String,
        local: &LocalModel,
        context: Option<usize>,
    ) -> Result<Opened> {
        let started = Instant::now();
        let facts = shared.facts_of(&name, local)?;
        let model = open_model(&local.path)?;
        let mut options = shared.options.load.clone();
        options.context = match facts.capabilities.embedding {
            // What the server was started with is meant for answers.
            true => context.map(|context| context.min(facts.context_length)),
            false => {
                let least = facts.defaults.context.or(options.context);
                let wanted = context.map(|context| context.min(facts.context_length).max(2));
                wanted.map(|context| context.max(least.unwrap_or(0))).or(least)
            }
        };
        options.draft = shared.drafts().get(&name).cloned();
        let plan = plan_memory(&model, &options)?;
        Ok(Opened { name, model, facts, options, plan, started })
    }

    fn load(self, requests: SchedulerOptions) -> Result<Loaded> {
        tracing::info!(model = self.name, plan = %self.plan, "loading");
        let Opened { name, model, facts, options, started, .. } = self;
        Loaded::new(name, facts, &model, &options, requests, started)
    }
}

/// Unloads models that nobody uses until the new one fits; waits for requests to end if it must.
async fn make_room(shared: &Shared, opened: &Opened) -> Result<()> {
    let (options, plan) = (&shared.options, &opened.plan);
    let no_room = |why: String| {
        let message = format!("there is no room for {}: {plan}; {why}", opened.name);
        ApiError::new(Kind::Unavailable, message)
    };
    if let Some(budget) = options.memory.filter(|&budget| plan.total() > budget) {
        let budget = budget.div_ceil(1 << 20);
        return Err(no_room(format!("the server may use {budget} MiB for models")));
    }
    let mut changes = shared.pool.changes();
    let deadline = tokio::time::Instant::now() + options.patience;
    loop {
        changes.borrow_and_update();
        let there = shared.pool.occupied();
        let full = there.models >= options.max_models.max(1);
        let over =
            options.memory.is_some_and(|most| there.bytes.saturating_add(plan.total()) > most);
        let short = available_memory().is_some_and(|bytes| plan.unmapped() > bytes);
        // With nothing else in memory the engine's own check says what is missing.
        if there.models == 0 || there.departing == 0 && !(full || over || short) {
            return Ok(());
        }
        if there.departing == 0 {
            shared.pool.dismiss_idle();
        }
        if timeout_at(deadline, changes.changed()).await.is_err() {
            let models = there.models;
            return Err(no_room(format!(
                "the requests of {models} other models take long; try again later, or start the \
                 server with more room"
            )));
        }
    }
}
