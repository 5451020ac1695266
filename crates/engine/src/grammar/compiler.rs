//! From a grammar to a constraint.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use baton_text::Tokenizer;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};

use super::vocabulary::{SharedVocabulary, Vocabulary};
use super::{Constraint, Grammar, Reasoning, limits};
use crate::{Error, Result};

/// The name of the threads that grammars are compiled in.
const THREAD: &str = "grammar";

/// Makes [`Constraint`]s for one vocabulary. Building it takes some tenths of a second for a large
/// vocabulary, a constraint some milliseconds.
pub struct GrammarCompiler {
    factory: ParserFactory,
    vocabulary: SharedVocabulary,
}

impl GrammarCompiler {
    /// A compiler for the tokens of `tokenizer`, of which `ends` end an answer.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] if no token ends an answer, or there are more tokens than any model has.
    pub fn new(tokenizer: &Tokenizer, ends: &HashSet<u32>) -> Result<Self> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, ends)?);
        let env: TokEnv = vocabulary.clone();
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| Error::Vocabulary { problem: error.to_string() })?;
        factory.quiet();
        *factory.limits_mut() = limits::parser_limits();
        Ok(GrammarCompiler { factory, vocabulary })
    }

    /// A constraint for one answer. It counts from the first token on, or from where the reasoning
    /// ends; until then the answer cannot end. Between the two there may be a few characters of
    /// white space.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the grammar is not valid, asks for what cannot be enforced, no text
    /// matches it, or it is too large.
    pub fn compile(&self, grammar: &Grammar, reasoning: Option<&Reasoning>) -> Result<Constraint> {
        limits::check(grammar)?;
        let what = grammar.what();
        // Its depth is bounded by its size only; each level takes a stack frame or several.
        let matcher = thread::scope(|scope| {
            let thread = thread::Builder::new().name(THREAD.into()).stack_size(limits::STACK);
            let work = thread.spawn_scoped(scope, || self.matcher(grammar));
            let work = work.map_err(|error| {
                limits::error(what, &format_args!("there is no memory for its thread: {error}"))
            })?;
            work.join().unwrap_or_else(|_| Err(limits::error(what, &"it makes the parser panic")))
        })?;
        let reasoning = reasoning.filter(|_| !matches!(grammar, Grammar::Whole(_)));
        Ok(Constraint::new(matcher, self.vocabulary.clone(), what, reasoning))
    }

    fn matcher(&self, grammar: &Grammar) -> Result<Matcher> {
        let failed = |error| limits::error(grammar.what(), &error);
        let parser = self.factory.create_parser(grammar.top_level()).map_err(failed)?;
        let mut matcher = Matcher::new(Ok(parser));
        // A grammar that nothing matches shows here, not in the middle of an answer.
        matcher.compute_mask().map_err(failed)?;
        Ok(matcher)
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").field("vocabulary", &self.vocabulary).finish()
    }
}
