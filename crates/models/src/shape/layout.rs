//! The tensors that a model of a shape has, and what the metadata of its file says.

use baton_weights::{DType, Metadata, Value};

use super::Shape;
use super::recipe::{Recipe, Role};

/// A file that is to be made.
pub struct Layout {
    /// Its metadata.
    pub metadata: Metadata,
    /// Its tensors.
    pub tensors: Vec<Planned>,
}

/// A tensor that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: DType,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl Planned {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().map(|&n| n as u64).product();
        elements / self.dtype.block_len() as u64 * self.dtype.block_bytes() as u64
    }

    /// Whether it may share its bytes with others of its type: quantized ones may.
    pub fn shares(&self) -> bool {
        !self.dtype.is_float()
    }
}

impl Layout {
    /// That of a shape.
    pub fn of(shape: &Shape, recipe: &Recipe) -> Layout {
        Layout { metadata: metadata(shape, recipe), tensors: tensors(shape, recipe) }
    }
}

fn metadata(shape: &Shape, recipe: &Recipe) -> Metadata {
    let number = |n: usize| Value::U32(n as u32);
    let architecture = shape.architecture.as_str();
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", architecture);
    metadata.insert("general.name", "random weights");
    metadata.insert("general.file_type", recipe.file_type);
    let mut insert = |key: &str, value: Value| {
        metadata.insert(format!("{architecture}.{key}"), value);
    };
    insert("block_count", number(shape.layers));
    insert("context_length", number(shape.context));
    insert("embedding_length", number(shape.hidden));
    insert("feed_forward_length", number(shape.ffn));
    insert("attention.head_count", number(shape.heads));
    insert("attention.head_count_kv", number(shape.kv_heads));
    insert("attention.key_length", number(shape.head_dim));
    insert("attention.value_length", number(shape.head_dim));
    insert("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    insert("rope.dimension_count", number(shape.head_dim));
    insert("rope.freq_base", Value::F32(shape.rope_theta));
    if let Some(window) = shape.window {
        insert("attention.sliding_window", number(window));
    }
    if let Some(experts) = &shape.experts {
        insert("expert_count", number(experts.count));
        insert("expert_used_count", number(experts.used));
        insert("expert_feed_forward_length", number(experts.ffn));
    }
    metadata
}

fn tensors(shape: &Shape, recipe: &Recipe) -> Vec<Planned> {
    let &Shape { layers, hidden, ffn, heads, kv_heads, head_dim, vocab, tied, .. } = shape;
    let mut list = List { recipe, layers, tensors: Vec::new() };
    let embedding = if tied { Role::Head } else { Role::Other };
    list.matrix("token_embd", embedding, 0, &[vocab, hidden]);
    list.vector("output_norm", hidden);
    if !tied {
        list.matrix("output", Role::Head, 0, &[vocab, hidden]);
    }
    let is_gemma = shape.architecture == "gemma3";
    for i in 0..layers {
        let name = |kind: &str| format!("blk.{i}.{kind}");
        list.vector(&name("attn_norm"), hidden);
        list.matrix(&name("attn_q"), Role::Other, i, &[heads * head_dim, hidden]);
        list.matrix(&name("attn_k"), Role::Other, i, &[kv_heads * head_dim, hidden]);
        list.matrix(&name("attn_v"), Role::Value, i, &[kv_heads * head_dim, hidden]);
        list.matrix(&name("attn_output"), Role::Other, i, &[hidden, heads * head_dim]);
        if is_gemma || shape.architecture.starts_with("qwen3") {
            list.vector(&name("attn_q_norm"), head_dim);
            list.vector(&name("attn_k_norm"), head_dim);
        }
        if is_gemma {
            list.vector(&name("post_attention_norm"), hidden);
            list.vector(&name("post_ffw_norm"), hidden);
        }
        list.vector(&name("ffn_norm"), hidden);
        match &shape.experts {
            None => {
                list.matrix(&name("ffn_gate"), Role::Other, i, &[ffn, hidden]);
                list.matrix(&name("ffn_up"), Role::Other, i, &[ffn, hidden]);
                list.matrix(&name("ffn_down"), Role::Down, i, &[hidden, ffn]);
            }
            Some(experts) => {
                let (count, ffn) = (experts.count, experts.ffn);
                // Quantizers leave the router alone.
                list.add(&name("ffn_gate_inp"), DType::F32, &[count, hidden]);
                list.matrix(&name("ffn_gate_exps"), Role::Other, i, &[count, ffn, hidden]);
                list.matrix(&name("ffn_up_exps"), Role::Other, i, &[count, ffn, hidden]);
                list.matrix(&name("ffn_down_exps"), Role::Down, i, &[count, hidden, ffn]);
            }
        }
    }
    list.tensors
}

struct List<'a> {
    recipe: &'a Recipe,
    layers: usize,
    tensors: Vec<Planned>,
}

impl List<'_> {
    fn matrix(&mut self, name: &str, role: Role, layer: usize, shape: &[usize]) {
        let cols = shape.last().copied().unwrap_or(1);
        self.add(name, self.recipe.dtype(role, cols, layer, self.layers), shape);
    }

    fn vector(&mut self, name: &str, len: usize) {
        self.add(name, DType::F32, &[len]);
    }

    fn add(&mut self, name: &str, dtype: DType, shape: &[usize]) {
        self.tensors.push(Planned { name: format!("{name}.weight"), dtype, shape: shape.to_vec() });
    }
}
