//! Fetches a model and prints where it is: `cargo run -p baton-hub --example pull -- smollm2`.

use baton_hub::{Event, Result, Store};

fn main() -> std::process::ExitCode {
    let name = std::env::args().nth(1).unwrap_or_else(|| "smollm2".into());
    match pull(&name) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn pull(name: &str) -> Result<()> {
    let store = Store::open_default()?;
    let model = store.get(&store.resolve(name)?, &mut |event: Event<'_>| match event {
        Event::TryingSource { source } => eprintln!("trying {source}"),
        Event::SourceFailed { error, .. } => eprintln!("  {error}"),
        Event::WaitingForLock { what } => eprintln!("another process is fetching {what}; waiting"),
        Event::Started { file, resumed_at, .. } => eprintln!("{file} from byte {resumed_at}"),
        Event::Retrying { error, delay, .. } => eprintln!("  {error}; again in {delay:?}"),
        Event::Bytes { done, total: Some(total), .. } => {
            eprint!("\r{:3} %", done * 100 / total.max(1))
        }
        Event::Done { file, size, .. } => eprintln!("\r{file} is here, {size} bytes"),
        _ => {}
    })?;
    println!("{}", model.path.display());
    Ok(())
}
