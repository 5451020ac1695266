//! A model of a few hundred kilobytes whose answers are known: each token has exactly one successor.
//!
//! Embeddings are one-hot, attention and feed-forward add nothing, and the output matrix holds the
//! successors. Tokens are single bytes, a few control tokens, and any pieces of text that an answer
//! is to be made of. The last token of a chat's prompt is the line break after `assistant`, so that
//! every answer is what follows a line break.

use std::fs::File;
use std::path::Path;

use baton_weights::gguf::{GgufWriter, Metadata, Strings};
use baton_weights::{DType, Value};

/// ChatML, as SmolLM2 and Qwen use it.
pub const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const END_OF_TEXT: usize = 256;
const START: usize = 257;
const END: usize = 258;
/// Bytes, control tokens, and one token that merging makes.
const COMMON: usize = 260;
const HEAD: usize = 32;

/// The model, still to be written to a file.
#[derive(Clone, Debug)]
pub struct Successors {
    next: Vec<usize>,
    pieces: Vec<String>,
    /// Which of the pieces are control tokens.
    controls: Vec<String>,
    template: Option<String>,
}

impl Successors {
    /// A model that answers `text` to everything.
    ///
    /// # Panics
    /// If a byte occurs twice, as each has one successor.
    pub fn answering(text: &str) -> Self {
        let mut next = vec![END; COMMON];
        let mut last = usize::from(b'\n');
        for byte in text.bytes().map(usize::from) {
            next[last] = byte;
            last = byte;
        }
        let chained = next.iter().filter(|&&byte| byte != END).count();
        assert!(chained == text.len() && next[last] == END, "a byte occurs twice in {text:?}");
        Successors::of(next, Vec::new())
    }

    fn of(next: Vec<usize>, pieces: Vec<String>) -> Self {
        Successors { next, pieces, controls: Vec::new(), template: Some(CHATML.into()) }
    }

    /// A model that answers with these pieces of text, each of which is one token.
    pub fn speaking(pieces: &[&str]) -> Self {
        let mut next = vec![END; COMMON + pieces.len()];
        let mut last = usize::from(b'\n');
        for at in 0..pieces.len() {
            next[last] = COMMON + at;
            last = COMMON + at;
        }
        let pieces = pieces.iter().map(|&piece| piece.to_owned()).collect();
        Successors::of(next, pieces)
    }

    /// A model that writes lines with one `a` and does not end by itself.
    pub fn endless() -> Self {
        let mut next = vec![END; COMMON];
        next[usize::from(b'\n')] = usize::from(b'a');
        next[usize::from(b'a')] = usize::from(b'\n');
        Successors::of(next, Vec::new())
    }

    /// The same with these control tokens, which may be pieces of the answer.
    #[must_use]
    pub fn with_controls(mut self, names: &[&str]) -> Self {
        for name in names {
            if !self.pieces.iter().any(|piece| piece == name) {
                self.pieces.push((*name).to_owned());
                self.next.push(END);
            }
            self.controls.push((*name).to_owned());
        }
        self
    }

    /// The same with another chat template.
    #[must_use]
    pub fn with_template(self, template: &str) -> Self {
        Successors { template: Some(template.into()), ..self }
    }

    /// The same without a chat template, as base models are.
    #[must_use]
    pub fn without_template(self) -> Self {
        Successors { template: None, ..self }
    }

    /// Writes it as a GGUF file.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) {
        let (next, vocab) = (&self.next, self.next.len());
        let mut tensors = Vec::new();
        let mut add = |name: &str, shape: &[usize], value: &dyn Fn(usize, usize) -> f32| {
            let cols = *shape.last().expect("every tensor has a shape");
            let rows = shape.iter().product::<usize>() / cols;
            let values = (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c)));
            let data: Vec<u8> = values.flat_map(|(r, c)| value(r, c).to_le_bytes()).collect();
            tensors.push((name.to_owned(), DType::F32, shape.to_vec(), data));
        };
        let one = |_, _| 1.0;
        let zero = |_, _| 0.0;
        add("token_embd.weight", &[vocab, vocab], &|r, c| f32::from(u8::from(r == c)));
        add("output.weight", &[vocab, vocab], &|r, c| f32::from(u8::from(next[c] == r)));
        add("output_norm.weight", &[vocab], &one);
        add("blk.0.attn_norm.weight", &[vocab], &one);
        add("blk.0.ffn_norm.weight", &[vocab], &one);
        for name in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
            add(&format!("blk.0.{name}.weight"), &[HEAD, vocab], &zero);
        }
        for name in ["attn_output", "ffn_down"] {
            add(&format!("blk.0.{name}.weight"), &[vocab, HEAD], &zero);
        }
        let heads: Vec<_> = tensors.iter().map(|(n, d, s, _)| (n.clone(), *d, s.clone())).collect();
        let file = File::create(path).expect("the file can be created");
        let mut writer = GgufWriter::new(file, &self.metadata(), &heads).expect("a header");
        tensors.iter().for_each(|(_, _, _, data)| writer.tensor(data).expect("fits"));
        writer.finish().expect("all written");
    }

    fn metadata(&self) -> Metadata {
        let vocab = self.next.len();
        let mut tokens = Strings::new();
        (0..=255).for_each(|byte| tokens.push(&byte_symbol(byte).to_string()));
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "QZ"].iter().for_each(|t| tokens.push(t));
        for piece in &self.pieces {
            tokens.push(&piece.bytes().map(byte_symbol).collect::<String>());
        }
        assert_eq!(tokens.len(), vocab);
        let mut kinds = vec![1i32; vocab];
        [END_OF_TEXT, START, END].iter().for_each(|&id| kinds[id] = 3);
        for (kind, piece) in kinds[COMMON..].iter_mut().zip(&self.pieces) {
            if self.controls.contains(piece) {
                *kind = 3;
            }
        }
        let merges: Strings = ["Q Z"].into_iter().collect();
        let entries: [(&str, Value); 21] = [
            ("general.architecture", "llama".into()),
            ("general.name", "Tiny".into()),
            ("general.license", "MIT".into()),
            ("llama.block_count", 1u32.into()),
            ("llama.context_length", (1u32 << 20).into()),
            ("llama.embedding_length", (vocab as u32).into()),
            ("llama.feed_forward_length", (HEAD as u32).into()),
            ("llama.attention.head_count", 1u32.into()),
            ("llama.attention.head_count_kv", 1u32.into()),
            ("llama.attention.key_length", (HEAD as u32).into()),
            ("llama.attention.value_length", (HEAD as u32).into()),
            ("llama.attention.layer_norm_rms_epsilon", 1e-6f32.into()),
            ("llama.rope.dimension_count", (HEAD as u32).into()),
            ("llama.rope.freq_base", 10_000f32.into()),
            ("tokenizer.ggml.model", "gpt2".into()),
            ("tokenizer.ggml.pre", "smollm".into()),
            ("tokenizer.ggml.tokens", tokens.into()),
            ("tokenizer.ggml.token_type", kinds.into()),
            ("tokenizer.ggml.merges", merges.into()),
            ("tokenizer.ggml.bos_token_id", (START as u32).into()),
            ("tokenizer.ggml.eos_token_id", (END as u32).into()),
        ];
        let template = self.template.as_deref();
        let template = template.map(|source| ("tokenizer.chat_template", source.into()));
        entries.into_iter().chain(template).collect()
    }
}

/// The character by which byte-level vocabularies write a byte.
fn byte_symbol(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(256 + before).expect("a small number is a character")
}
