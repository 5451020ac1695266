//! Which programs the packages are for, by the command's arguments.

use baton_coreml::layout::{Anemll, Layout, LlmCli, Prefix};
use baton_models::Model;

use crate::failure::usage;

/// The arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The programs that the packages are for
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    layout: Name,
    /// What the names of files begin with in the layouts of others (default: the model's name)
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,
}

/// A layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    #[default]
    Baton,
    Anemll,
    CoremlLlmCli,
}

impl Args {
    /// An option that was given.
    pub fn given(&self) -> Option<&'static str> {
        super::given([
            (self.layout != Name::Baton, "--layout"),
            (self.prefix.is_some(), "--prefix"),
        ])
    }

    /// The most tokens of a text, if nothing else is asked for: what a layout has functions for.
    pub fn default_context(&self, most: usize, tokens: &[u16]) -> usize {
        match (self.layout, tokens) {
            (Name::Baton, _) => most,
            (_, &[tokens, ..]) if usize::from(tokens) <= most => most - most % usize::from(tokens),
            _ => most,
        }
    }

    /// The layout for functions of so many tokens. Of `own_options` those that were given make sense for
    /// Baton's own layout only.
    pub fn layout(
        &self,
        model: &Model,
        context: usize,
        tokens: &[u16],
        own_options: &[(bool, &'static str)],
    ) -> anyhow::Result<Layout> {
        let prefix = match (&self.prefix, self.layout) {
            (Some(_), Name::Baton) => {
                return Err(usage("--prefix is for the layouts of others; name one with --layout"));
            }
            (Some(text), _) => {
                Prefix::new(text).map_err(|error| usage(format!("--prefix: {error}")))?
            }
            (None, _) => Prefix::of_model(model.name()),
        };
        let tokens = match (self.layout, tokens) {
            (Name::Baton, _) => return Ok(Layout::Baton),
            (_, &[tokens]) => usize::from(tokens),
            _ => return Err(usage("--tokens: this layout has functions for one number of tokens")),
        };
        if let Some(option) = super::given(own_options.iter().copied()) {
            return Err(usage(format!(
                "{option} is for --layout baton: packages of other layouts have the functions and the \
                 embeddings that their programs look for, and are not measured here"
            )));
        }
        let layout = match self.layout {
            Name::CoremlLlmCli => LlmCli::new(prefix, context, tokens).map(Layout::LlmCli),
            _ => Anemll::new(prefix, context, tokens, model.architecture()).map(Layout::Anemll),
        };
        layout.map_err(|error| usage(format!("--context, --tokens: {error}")))
    }
}
