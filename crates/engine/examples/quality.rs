//! Perplexity of a text on a unit, the CPU if none is named, and how far that is from the reference
//! interpreter: `cargo run --release -p baton-engine --example quality -- MODEL TEXT [TOKENS [WINDOW
//! [KV_TYPE [UNIT [AT_ONCE]]]]]`. Units compute few tokens in another way than many; `AT_ONCE` tokens
//! are evaluated at once.

use baton_engine::{KvType, LoadOptions, ModelText, UnitKind, Windows, compare, compile_model};
use baton_models::Model;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, sizes @ ..] = &args[..] else {
        let usage = "usage: quality MODEL TEXT [TOKENS [WINDOW [KV_TYPE [UNIT [AT_ONCE]]]]]";
        return Err(usage.into());
    };
    let size = |i: usize, default: usize| sizes.get(i).map_or(Ok(default), |n| n.parse());
    let (tokens, window) = (size(0, 8192)?, size(1, 2048)?);
    let kv_type = sizes.get(2).map_or(Ok(KvType::F16), |name| name.parse())?;
    let unit = sizes.get(3).map_or(Ok(UnitKind::Cpu), |name| name.parse())?;
    let batch_tokens = size(4, LoadOptions::default().batch_tokens)?;
    let model = Model::open(model)?;
    let tokenizer = ModelText::of(&model)?.tokenizer;
    let mut ids = tokenizer.encode(&std::fs::read_to_string(text)?, false)?;
    ids.truncate(tokens);
    let load = |unit| {
        let options = LoadOptions {
            unit,
            kv_type,
            context: Some(window),
            batch_tokens,
            ..LoadOptions::default()
        };
        compile_model(&model, &options)
    };
    let (mut tried, mut reference) = (load(unit)?, load(UnitKind::Reference)?);
    let windows = Windows { len: window, first: tokenizer.bos().filter(|_| tokenizer.add_bos()) };
    let result = compare(&mut *tried.executor, &mut *reference.executor, &ids, windows)?;
    println!("model               {} on {unit}, by {batch_tokens}", model.name());
    println!("tokens              {} in windows of {window}", result.rows);
    println!("perplexity          {:.4}", result.evaluation.perplexity());
    println!("reference           {:.4}", result.reference.perplexity());
    println!("mean KL             {:.3e} nats (largest {:.3e})", result.mean_kl, result.max_kl);
    println!("top-1 agreement     {:.3} %", 100.0 * result.top1_agreement);
    println!("largest difference  {:.4}", result.max_difference);
    Ok(())
}
