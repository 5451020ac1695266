//! `baton tokenize`: the ids and pieces of a text.

use std::io::{self, Read, Write};

use anyhow::Context;
use baton_engine::{ModelText, open_model};
use baton_text::Tokenizer;
use serde_json::json;

use crate::failure::eprintln_quietly;
use crate::{format, models};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton tokenize smollm2 \"Hello, world\"
  baton tokenize ./model.gguf - < text.txt        a text from standard input
  baton tokenize smollm2 \"Hello\" --count          only how many
  baton tokenize smollm2 \"Hello\" --json | jq .ids

The names of control tokens (such as <|im_start|>) stand for those tokens, as in a rendered chat
template; --plain reads them as ordinary text.";

/// Arguments of `baton tokenize`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// The text; `-` for standard input
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    text: String,
    /// Print only the number of tokens
    #[arg(long, conflicts_with = "json")]
    count: bool,
    /// Read the names of control tokens as ordinary text
    #[arg(long)]
    plain: bool,
    /// Leave out the tokens that the model puts around a text (such as BOS)
    #[arg(long)]
    no_special: bool,
    /// Print JSON: {"count", "ids", "pieces"}
    #[arg(long)]
    json: bool,
}

/// Prints them.
///
/// # Errors
/// If the model or the text cannot be had.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let text = if args.text == "-" { read_stdin()? } else { args.text.clone() };
    let store = models::store()?;
    let reference = models::resolve(&store, &args.model)?;
    let model = models::get(&store, &reference)?;
    let tokenizer = ModelText::of(&open_model(&model.path)?)?.tokenizer;
    let add_special = !args.no_special;
    let ids = if args.plain {
        tokenizer.encode_as_text(&text, add_special)?
    } else {
        tokenizer.encode(&text, add_special)?
    };
    let mut out = io::stdout().lock();
    if args.count {
        writeln!(out, "{}", ids.len())?;
    } else if args.json {
        let pieces: Vec<_> = ids.iter().map(|&id| piece(&tokenizer, id)).collect();
        let object = json!({ "count": ids.len(), "ids": ids, "pieces": pieces });
        writeln!(out, "{object}")?;
    } else {
        let row = |&id: &u32| [format!("{id:>7}"), format!("{:?}", piece(&tokenizer, id))];
        let rows: Vec<_> = ids.iter().map(row).collect();
        for line in format::table(&rows) {
            writeln!(out, "{line}")?;
        }
        eprintln_quietly(format_args!("{} tokens", ids.len()));
    }
    out.flush()?;
    Ok(())
}

/// What an id stands for: the text of it, or a control token's name.
fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    match tokenizer.token_bytes(id) {
        [] => tokenizer.token(id).unwrap_or_default(),
        bytes => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    io::stdin()
        .lock()
        .read_to_string(&mut text)
        .context("cannot read standard input as UTF-8 text")?;
    Ok(text)
}
