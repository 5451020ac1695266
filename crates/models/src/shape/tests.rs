use super::*;

fn wanted(text: &str) -> Wanted {
    text.parse().unwrap()
}

#[test]
fn parameters_are_those_of_the_published_models() {
    // What the model cards count, or the sum over the published files' tensors.
    let table: &[(&str, u64)] = &[
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("mistral-7b", 7_248_023_552),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-3-270m", 268_098_176),
        ("gemma-3-1b", 999_885_952),
    ];
    for (name, parameters) in table {
        let wanted = wanted(name);
        let tensors = Layout::of(&wanted.shape, wanted.recipe).tensors;
        let found: u64 =
            tensors.iter().map(|t| t.shape.iter().map(|&n| n as u64).product::<u64>()).sum();
        assert_eq!(found, *parameters, "{name}");
    }
}

#[test]
fn types_are_those_of_published_files() {
    let of = |text: &str, tensor: &str| {
        let wanted = wanted(text);
        let tensors = Layout::of(&wanted.shape, wanted.recipe).tensors;
        let name = format!("{tensor}.weight");
        tensors.into_iter().find(|t| t.name == name).unwrap().dtype
    };
    let table = [
        ("llama-3.1-8b:q4_k_m", "token_embd", DType::Q4_K),
        ("llama-3.1-8b:q4_k_m", "output", DType::Q6_K),
        ("llama-3.1-8b:q4_k_m", "blk.0.attn_v", DType::Q6_K),
        ("llama-3.1-8b:q4_k_m", "blk.4.attn_v", DType::Q4_K),
        ("llama-3.1-8b:q4_k_m", "blk.6.ffn_down", DType::Q6_K),
        ("llama-3.1-8b:q4_k_m", "blk.31.ffn_down", DType::Q6_K),
        ("llama-3.1-8b:q4_k_m", "blk.31.attn_q", DType::Q4_K),
        ("llama-3.1-70b:q4_k_m", "blk.11.attn_v", DType::Q5_K),
        ("llama-3.1-8b:q4_k_s", "blk.3.attn_v", DType::Q5_K),
        ("llama-3.1-8b:q4_0", "output", DType::Q6_K),
        ("llama-3.1-8b:q4_0", "blk.0.ffn_down", DType::Q4_0),
        ("llama-3.2-1b:q8_0", "token_embd", DType::Q8_0),
        ("qwen3-0.6b:q4_k_m", "token_embd", DType::Q6_K),
        ("qwen3-30b-a3b:q4_k_m", "blk.0.ffn_gate_inp", DType::F32),
        ("qwen3-30b-a3b:q4_k_m", "blk.0.ffn_down_exps", DType::Q6_K),
        // Rows of 640 are no whole number of blocks of 256.
        ("gemma-3-270m:q4_k_m", "token_embd", DType::Q8_0),
        ("gemma-3-270m:q4_k_m", "blk.0.attn_q", DType::Q5_0),
        ("gemma-3-270m:q4_k_m", "blk.0.attn_output", DType::Q4_K),
    ];
    for (text, tensor, dtype) in table {
        assert_eq!(of(text, tensor), dtype, "{text} {tensor}");
    }
}

#[test]
fn every_shape_is_a_model_that_builds() {
    // Tensors of the smallest shapes only; the others differ in numbers.
    for text in ["tiny:q4_k_m", "tiny:q8_0", "tiny:f16", "tiny-moe:q4_0", "tiny-moe:q6_k"] {
        let model = wanted(text).make().unwrap();
        let (graph, weights) = model.build(&crate::BuildOptions { context: 64 }).unwrap();
        assert_eq!(graph.vocab(), 512);
        assert_eq!(weights.stored_bytes() as u64, wanted(text).need().weights, "{text}");
    }
    for (name, shape) in shapes() {
        assert!(shape.heads.is_multiple_of(shape.kv_heads), "{name}");
    }
}

#[test]
fn needs_are_those_of_published_files() {
    let need = wanted("llama-3.1-70b:q4_k_m").need();
    assert!((42_000_000_000..43_000_000_000).contains(&need.weights), "{need:?}");
}

#[test]
fn names_are_found_or_listed() {
    assert_eq!(wanted("Llama-3.1-8B").to_string(), "llama-3.1-8b:q4_k_m");
    assert!("llama-9".parse::<Wanted>().unwrap_err().contains("qwen3-0.6b"));
    assert!("tiny:q9".parse::<Wanted>().unwrap_err().contains("q4_k_m"));
}
