//! `baton list`: the models on this machine, and on request those that could be.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_hub::{LocalModel, Store};
use serde_json::json;

use crate::{format, models};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton list          what is here
  baton list --all    also every name of the catalog that can be pulled, with others for the same
  baton list --json   for programs";

/// Arguments of `baton list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also list the names of the catalog that are not here yet
    #[arg(long, short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the list.
struct Row {
    name: String,
    /// Its other names, which can be typed as well.
    aliases: Vec<String>,
    size: Option<u64>,
    /// Seconds since 1970; none for a model that is not here.
    fetched_at: Option<u64>,
    source: String,
    title: Option<String>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Here,
    Damaged,
    Absent,
}

/// Prints the list.
///
/// # Errors
/// If the store cannot be read.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let store = models::store()?;
    let rows = rows(&store, args.all)?;
    let mut out = format::stdout();
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut cells = vec![["NAME", "SIZE", "MODIFIED", "SOURCE"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| row.cells(now, args.all)));
    for line in format::table(&cells) {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    models::warn_if_unusable(&store)?;
    if rows.is_empty() {
        let name = store.catalog().default_model();
        crate::failure::note(format_args!(
            "no model is here yet; `baton pull {name}` fetches the default one, and `baton list \
             --all` shows what else there is"
        ));
    }
    Ok(())
}

fn rows(store: &Store, all: bool) -> anyhow::Result<Vec<Row>> {
    let here = store.list()?;
    let mut rows: Vec<_> = here.iter().map(|model| Row::local(store, model)).collect();
    if all {
        for entry in store.catalog().entries() {
            if here.iter().any(|model| model.name == entry.name) {
                continue;
            }
            rows.push(Row {
                name: entry.name.clone(),
                aliases: aliases(store, &entry.name),
                size: entry.size,
                fetched_at: None,
                source: entry.sources.first().map(ToString::to_string).unwrap_or_default(),
                title: Some(entry.title.clone()),
                state: State::Absent,
            });
        }
    }
    Ok(rows)
}

fn aliases(store: &Store, name: &str) -> Vec<String> {
    store.catalog().aliases(name).map(str::to_owned).collect()
}

impl Row {
    fn local(store: &Store, model: &LocalModel) -> Self {
        Self {
            name: model.name.clone(),
            aliases: aliases(store, &model.name),
            size: Some(model.size),
            fetched_at: model.fetched_at,
            source: model.source.clone().unwrap_or_default(),
            title: store.catalog().get(&model.name).map(|entry| entry.title.clone()),
            state: if model.complete { State::Here } else { State::Damaged },
        }
    }

    fn cells(&self, now: Duration, with_aliases: bool) -> [String; 4] {
        let name = match with_aliases && !self.aliases.is_empty() {
            true => format!("{} ({})", self.name, self.aliases.join(", ")),
            false => self.name.clone(),
        };
        let modified = match (self.state, self.fetched_at) {
            (State::Absent, _) => "not pulled".to_owned(),
            (State::Damaged, _) => "damaged, pull again".to_owned(),
            (State::Here, Some(at)) => format::ago(now.saturating_sub(Duration::from_secs(at))),
            (State::Here, None) => String::new(),
        };
        let size = self.size.map_or_else(|| "-".to_owned(), format::bytes);
        [name, size, modified, self.source.clone()]
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "aliases": self.aliases,
            "title": self.title,
            "size": self.size,
            "fetched_at": self.fetched_at,
            "source": self.source,
            "pulled": self.state != State::Absent,
            "complete": self.state == State::Here,
        })
    }
}
