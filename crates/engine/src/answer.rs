//! One answer as a machine of steps: which tokens to evaluate next, and what their logits mean.
//!
//! It knows nothing of where the tokens are evaluated, so that one answer alone and many in a batch
//! are made by the same rules.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use baton_graph::{Batch, Logits, Rows, SeqId, Span};

use crate::peak_memory;
use crate::phases::PhaseClock;
use crate::sequences::Sequences;
use crate::session::Prompt;
use crate::speculation::Speculation;
use crate::text_stream::TextStream;
use crate::transcript::Transcript;
use crate::{
    Constraint, Engine, Error, Event, FinishReason, GenerateOptions, Metrics, Result, Sampler,
    Summary,
};

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The prompt, then what was chosen.
    tokens: Vec<u32>,
    prompt: usize,
    /// How many of the tokens are in the cache.
    evaluated: usize,
    /// How many of them were when it last began.
    shared: usize,
    over: bool,
    sampler: Sampler,
    constraint: Option<Constraint>,
    text: Option<TextStream>,
    transcript: Option<Transcript>,
    speculation: Option<Speculation>,
    ignore_end: bool,
    /// Most tokens to generate.
    limit: usize,
    queue: VecDeque<Event>,
    started: Instant,
    first_token: Option<Instant>,
    phases: PhaseClock,
    metrics: Metrics,
    seed: u64,
}

impl Answer {
    /// Checks a request; nothing is computed yet.
    ///
    /// # Errors
    /// If an option makes no sense, the grammar cannot be obeyed, the prompt is empty or does not
    /// fit the context, or the prompt or the stop strings are text and the engine has no tokenizer.
    pub(crate) fn new(engine: &Engine, prompt: Prompt, options: &GenerateOptions) -> Result<Self> {
        let started = Instant::now();
        let config = options.sampling.or(&engine.traits().sampling).resolve()?;
        let seed = config.seed();
        let penalized = config.penalizes();
        let mut sampler = Sampler::new(config);
        let text = TextStream::new(engine.tokenizer(), options)?;
        let (tokens, transcript) = prompt_tokens(engine, prompt)?;
        let context = engine.limits().context;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() >= context {
            return Err(engine.too_long(tokens.len(), true));
        }
        if penalized {
            tokens.iter().for_each(|&token| sampler.accept(token));
        }
        let constrain = |grammar| engine.constraint(grammar, options.reasoning.as_ref());
        let constraint = options.grammar.as_ref().map(constrain);
        let constraint = constraint.transpose()?;
        let room = context - tokens.len();
        let metrics = Metrics {
            prompt_tokens: tokens.len(),
            load: engine.traits().load_time,
            ..Metrics::default()
        };
        Ok(Answer {
            prompt: tokens.len(),
            tokens,
            evaluated: 0,
            shared: 0,
            over: false,
            sampler,
            constraint,
            text,
            transcript,
            speculation: Speculation::new(engine, options.speculate)?,
            ignore_end: options.ignore_end,
            limit: options.max_tokens.map_or(room, |n| n.min(room)),
            queue: VecDeque::new(),
            started,
            first_token: None,
            phases: PhaseClock::new(engine.traits().lanes.as_ref()),
            metrics,
            seed,
        })
    }

    /// The prompt and what was chosen so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token ids of the prompt.
    pub(crate) fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt]
    }

    /// Tokens chosen so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// How many of its tokens are in the cache.
    pub(crate) fn evaluated(&self) -> usize {
        self.evaluated
    }

    /// How many of its tokens were in the cache when it last began.
    pub(crate) fn shared(&self) -> usize {
        self.shared
    }

    /// Tokens of the prompt that need not be evaluated.
    pub(crate) fn reused(&self) -> usize {
        self.metrics.reused_tokens
    }

    /// Says how many of its tokens are in the cache before the next step. The first time this is
    /// what was reused; later it is because its cache was lost to others.
    pub(crate) fn begin_at(&mut self, cached: usize) {
        if self.evaluated == 0 && self.metrics.prefilled_tokens == 0 {
            self.metrics.reused_tokens = cached;
        }
        self.evaluated = cached;
        self.shared = cached;
        self.forgo();
    }

    /// Tokens that wait to be evaluated; none if the answer is over.
    pub(crate) fn pending(&self) -> usize {
        if self.over { 0 } else { self.tokens.len() - self.evaluated }
    }

    /// A step begins that evaluates some of its tokens.
    pub(crate) fn step_begins(&mut self) {
        self.phases.start();
    }

    /// Guesses what comes after the next step, so that this evaluates it too. For an answer that is
    /// evaluated alone: among others there are rows enough.
    pub(crate) fn guess(&mut self, engine: &Engine) {
        let Some(speculation) = &mut self.speculation else { return };
        let waiting = self.tokens.len() - self.evaluated;
        let written = self.tokens.len() - self.prompt;
        if self.over || waiting != 1 || written == 0 {
            return;
        }
        // A step gives one token more than were guessed.
        let limits = engine.limits();
        let most = (self.limit - written - 1).min(limits.batch_tokens - 1);
        let ends = |token| !self.ignore_end && engine.traits().end_tokens.contains(&token);
        speculation.guess(&self.tokens, most, ends);
    }

    fn guessed(&self) -> &[u32] {
        self.speculation.as_ref().map_or(&[], Speculation::guessed)
    }

    /// Guesses nothing after all; whether anything was.
    fn forgo(&mut self) -> bool {
        let guessed = !self.guessed().is_empty();
        if let Some(speculation) = &mut self.speculation {
            speculation.forgo();
        }
        guessed
    }

    /// Its next `count` tokens as a part of a batch, with what is guessed behind the last of them.
    pub(crate) fn span(&self, seq: SeqId, count: usize) -> Span {
        let end = self.evaluated + count;
        let mut tokens = self.tokens[self.evaluated..end].to_vec();
        let rows = match self.guessed() {
            _ if end < self.tokens.len() => Rows::None,
            // A grammar may forbid the most likely tokens.
            [] if self.constraint.is_some() => Rows::Last,
            [] => self.sampler.enough().map_or(Rows::Last, Rows::Best),
            guessed => {
                tokens.extend(guessed);
                Rows::All
            }
        };
        Span { seq, tokens, rows }
    }

    /// Evaluates its next `count` tokens in a batch of their own, without the guess if the cache has
    /// no room for that.
    pub(crate) fn evaluate(
        &mut self,
        sequences: &mut Sequences,
        seq: SeqId,
        count: usize,
    ) -> Result<Logits> {
        let mut run =
            |answer: &Self| sequences.extend(Batch { spans: vec![answer.span(seq, count)] });
        match run(self) {
            Err(Error::CacheFull { .. }) if self.forgo() => run(self),
            other => other,
        }
    }

    /// Takes note that `count` tokens were evaluated in `took`. If these were the last,
    /// [`Answer::choose`] comes next, and again as long as nothing waits to be evaluated.
    pub(crate) fn advance(&mut self, count: usize, took: Duration) {
        self.evaluated += count;
        if self.first_token.is_none() {
            self.metrics.prefilled_tokens += count;
            self.metrics.prefill += took;
            self.queue.push_back(Event::Prefill { done: self.evaluated, total: self.prompt });
            return;
        }
        self.metrics.guessed_tokens += self.guessed().len();
        if let Some(speculation) = &mut self.speculation {
            speculation.note(took);
        }
    }

    /// Takes note of the units that evaluated the prompt, when all of it is evaluated.
    pub(crate) fn note_units(&mut self, sequences: &Sequences, seq: SeqId) {
        if self.first_token.is_none() {
            let evaluated = self.metrics.reused_tokens..self.prompt;
            self.metrics.handed_over_tokens = sequences.handed_over(seq, evaluated);
        }
    }

    /// Chooses the next token by the logits of the step, in which its span was number `span`.
    ///
    /// # Errors
    /// If none can be chosen; the answer cannot go on then.
    pub(crate) fn choose(&mut self, engine: &Engine, logits: &Logits, span: usize) -> Result<()> {
        if self.limit == 0 {
            self.end(engine, FinishReason::Length);
            return Ok(());
        }
        let at = self.speculation.as_ref().map_or(0, Speculation::row);
        let token = match logits.best_of(span) {
            Some(best) => self.sampler.sample_best(best)?,
            None => {
                let row = logits.row_of(span, at).ok_or_else(|| Error::BadLogits {
                    problem: "the compute unit returned none for the last token".into(),
                })?;
                let allowed = self.constraint.as_mut().map(Constraint::mask).transpose()?;
                self.sampler.sample(row, allowed)?
            }
        };
        let id = token.id;
        let guessed = self.speculation.as_mut().is_some_and(|s| s.check(id));
        // Behind the end that a grammar allows nothing could follow.
        let may_end = !self.ignore_end || self.constraint.is_some();
        if engine.traits().end_tokens.contains(&id) && may_end {
            self.end(engine, FinishReason::EndOfGeneration);
            return Ok(());
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
        }
        self.sampler.accept(id);
        let now = Instant::now();
        if self.first_token.is_some() && at == 0 {
            self.metrics.decode_steps += 1;
        }
        if self.first_token.is_none() {
            let handed_over = self.metrics.handed_over_tokens > 0;
            self.metrics.prefill_phase = self.phases.prefilled(handed_over);
        }
        let first = *self.first_token.get_or_insert(now);
        self.metrics.decode = now - first;
        self.metrics.generated_tokens += 1;
        self.metrics.right_guesses += usize::from(guessed);
        self.tokens.push(id);
        if let (Some(transcript), Ok(tokenizer)) = (&mut self.transcript, engine.tokenizer()) {
            transcript.push(tokenizer, id);
        }
        self.queue.push_back(Event::Token(token));
        if let Some(stop) = self.show(engine, id) {
            self.end(engine, FinishReason::Stop(stop));
        } else if self.constraint.as_ref().is_some_and(Constraint::finished) {
            self.end(engine, FinishReason::EndOfGeneration);
        } else if self.generated() == self.limit {
            self.end(engine, FinishReason::Length);
        } else if guessed {
            // It was evaluated already.
            self.evaluated += 1;
        }
        Ok(())
    }

    /// Queues the text that a token completes; the stop string, if it completes one.
    fn show(&mut self, engine: &Engine, id: u32) -> Option<String> {
        let (text, stop) = self.text.as_mut()?.push(engine.tokenizer().ok()?, id);
        self.queue_text(text);
        stop
    }

    fn queue_text(&mut self, text: String) {
        if !text.is_empty() {
            self.queue.push_back(Event::Text(text));
        }
    }

    /// Ends the answer here.
    pub(crate) fn end(&mut self, engine: &Engine, reason: FinishReason) {
        if let Some(text) = &mut self.text
            && !matches!(reason, FinishReason::Stop(_))
        {
            let rest = text.finish();
            self.queue_text(rest);
        }
        self.abandon(engine);
        let since_start = |at: Instant| -> Duration { at - self.started };
        self.metrics.first_token = self.first_token.map(since_start);
        self.metrics.decode_phase = self.phases.ended();
        self.metrics.peak_memory = peak_memory();
        let (seed, metrics) = (self.seed, self.metrics);
        self.queue.push_back(Event::Done(Summary { reason, seed, metrics }));
    }

    /// Ends the answer without a word: it is not wanted any more, or there was an error.
    pub(crate) fn abandon(&mut self, engine: &Engine) {
        self.over = true;
        if let Some(transcript) = self.transcript.take() {
            engine.remember(transcript);
        }
    }

    /// Whether there is nothing more to compute.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// The next thing to tell.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }
}

fn prompt_tokens(engine: &Engine, prompt: Prompt) -> Result<(Vec<u32>, Option<Transcript>)> {
    match prompt {
        Prompt::Tokens(tokens) => Ok((tokens, None)),
        Prompt::Text(text) => {
            engine.check_length(&text)?;
            Ok((engine.tokenizer()?.encode(&text, true)?, None))
        }
        Prompt::Rendered(text) => {
            engine.check_length(&text)?;
            let transcript = engine.recall(text)?;
            Ok((transcript.ids().to_vec(), Some(transcript)))
        }
    }
}
