//! Loads a model and streams one answer: `cargo run --release -p baton-engine --example hello -- MODEL.gguf`

use std::io::Write;

use baton_engine::{Engine, GenerateOptions, LoadOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: hello MODEL")?;
    let engine = Engine::load(path, &LoadOptions::default())?;
    let mut chat = engine.chat()?;
    for piece in chat.send("Why is the sky blue?", &GenerateOptions::default())?.text() {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    Ok(())
}
