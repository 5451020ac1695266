//! A model in memory, ready to answer.

use std::time::Instant;

use baton_engine::{
    CancelToken, Chat, Engine, GenerateOptions, LoadOptions, Session, open_model, template_source,
};
use baton_hub::{Entry, LocalModel};

use crate::failure::hinted;
use crate::format;
use crate::progress::Spinner;
use crate::sampling::{RANDOM_SEED, Sampling};

/// A model in memory.
pub struct Loaded {
    engine: Engine,
    template_source: Option<String>,
    name: String,
    lines: Vec<String>,
    recommended: baton_engine::Sampling,
}

impl Loaded {
    /// Loads a model. `catalog` is what is known of it besides its files.
    ///
    /// # Errors
    /// If its files are damaged, it is of an unknown kind, or it does not fit into memory.
    pub fn open(
        local: &LocalModel,
        catalog: Option<&Entry>,
        options: &LoadOptions,
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let _spinner = Spinner::start("loading the model");
        let model = open_model(&local.path)?;
        let engine = Engine::from_model(&model, options, started)?;
        let parameters = format::count(model.parameters());
        let (context, trained) = (engine.limits().context, model.config().context_length);
        let (what, room) = match model.packaged() {
            Some(packaged) => (
                format!("packages laid out for {}", packaged.layout),
                format!("a context of {context} tokens; its packages have room for {trained}"),
            ),
            None => (
                format!("{}, {parameters} parameters", model.architecture()),
                format!("a context of {context} tokens; it was trained for {trained}"),
            ),
        };
        let lines = vec![
            format!("{} ({})", local.name, model.name()),
            what,
            room,
            format!("{}", engine.traits().memory),
        ];
        let (template_source, name) = (template_source(&model), local.name.clone());
        let recommended = catalog.map(|entry| baton_engine::Sampling::from_names(&entry.sampling));
        let recommended = engine.traits().sampling.or(&recommended.unwrap_or_default());
        Ok(Self { engine, template_source, name, lines, recommended })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens that a prompt and its answer can have together.
    pub fn context(&self) -> usize {
        self.engine.limits().context
    }

    /// What it is, in a few lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Where it runs and why.
    pub fn units(&self) -> &[String] {
        &self.engine.traits().units
    }

    /// The source of its chat template.
    pub fn template(&self) -> Option<&str> {
        self.template_source.as_deref()
    }

    /// A text to be continued.
    pub fn session(&self) -> Session {
        self.engine.session()
    }

    /// A conversation that has not begun.
    ///
    /// # Errors
    /// If the model has no chat template.
    pub fn chat(&self, system: Option<&str>) -> anyhow::Result<Chat> {
        let hint =
            "--raw continues a text without a template; a model that was trained to chat has one";
        let mut chat = self.engine.chat().map_err(|error| hinted(error, hint))?;
        chat.set_system(system);
        Ok(chat)
    }

    /// What the engine needs to know to answer: what the user wants, and else what the model's
    /// files or the catalog recommend.
    pub fn answer_options(&self, sampling: &Sampling, cancel: &CancelToken) -> GenerateOptions {
        let wanted = baton_engine::Sampling {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repeat_penalty: sampling.repeat_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            seed: sampling.seed.filter(|&seed| seed != RANDOM_SEED),
            ..baton_engine::Sampling::default()
        };
        GenerateOptions {
            sampling: wanted.or(&self.recommended),
            max_tokens: sampling.max_tokens,
            stop: sampling.stop.clone(),
            cancel: cancel.clone(),
            ..GenerateOptions::default()
        }
    }
}
