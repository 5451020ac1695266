//! Diagnostics on standard error, chosen by the environment variable `BATON_LOG`.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::failure;

/// The variable that says what is logged: a level (`debug`), or `baton_hub=debug,warn` and the like.
pub const ENV: &str = "BATON_LOG";

/// Starts logging; warnings and errors only, unless the variable says otherwise.
///
/// # Errors
/// If the variable makes no sense.
pub fn start() -> anyhow::Result<()> {
    let wanted = std::env::var(ENV).unwrap_or_default();
    let wanted = if wanted.is_empty() { "warn" } else { &wanted };
    let filter = EnvFilter::try_new(wanted).map_err(|error| {
        failure::usage(format_args!("{ENV}={wanted:?} is no log filter ({error}); try {ENV}=debug"))
    })?;
    let format = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    format.without_time().compact().init();
    Ok(())
}
