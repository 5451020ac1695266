//! What files, functions, features and fields are called in each layout: facts about the programs that read
//! them, for whoever writes such folders and whoever runs them.

/// The extension of packages.
pub const PACKAGE: &str = "mlpackage";
/// The extension of what Core ML makes of packages on a Mac, which the programs of both projects read.
pub const COMPILED: &str = "mlmodelc";

/// Keys of the metadata by which packages that lie in the layouts of others tell where they belong.
pub mod place {
    /// The fingerprint of the model.
    pub const MODEL: &str = "baton.model";
    /// Which of its packages it is, from 1 in the order of calls, and of how many: `2 of 5`.
    pub const PART: &str = "baton.part";
    /// The first of its layers and the one behind the last: `0..15`.
    pub const LAYERS: &str = "baton.layers";
}

/// The layout of the project Anemll.
pub mod anemll {
    /// The file that describes a folder.
    pub const META: &str = "meta.yaml";
    /// The version of that project whose folders these are, by which its programs tell older forms.
    pub const VERSION: &str = "0.3.5";

    // Files are `{prefix}_{one of these}[_lut{bits}].mlpackage`.
    /// Tokens to hidden states.
    pub const EMBEDDINGS: &str = "embeddings";
    /// The layers, with [`chunk`] at the end of each name.
    pub const LAYERS: &str = "FFN_PF";
    /// The head.
    pub const HEAD: &str = "lm_head";

    /// What the end of the name of a chunk's file begins with.
    pub const CHUNK: &str = "_chunk_";

    /// The end of the name of a chunk's file; chunks count from 1.
    pub fn chunk(number: usize, of: usize) -> String {
        format!("{CHUNK}{number:02}of{of:02}")
    }

    // Functions of the layers; the other packages have a single one.
    /// One token, the default.
    pub const INFER: &str = "infer";
    /// A batch of tokens.
    pub const PREFILL: &str = "prefill";

    // Features.
    /// Of the embeddings, int32 `(1, 1)` or `(1, batch)`.
    pub const INPUT_IDS: &str = "input_ids";
    /// Of all packages, fp16 `(1, tokens, features)`: what the embeddings yield and the others take.
    pub const HIDDEN_STATES: &str = "hidden_states";
    /// Of the layers, int32 `(tokens)`.
    pub const POSITION_IDS: &str = "position_ids";
    /// Of the layers, fp16 `(1, 1, tokens, context)`: 0 for what is seen, minus infinity for what is not.
    pub const CAUSAL_MASK: &str = "causal_mask";
    /// Of the layers, int32 `(1)`: the position of the first token.
    pub const CURRENT_POS: &str = "current_pos";
    /// What the layers yield, fp16 `(1, tokens, features)`; one row by the last chunk's [`PREFILL`].
    pub const OUTPUT_HIDDEN_STATES: &str = "output_hidden_states";
    /// The state that all chunks share, fp16 `(2 * layers, key-value heads, context, features)`: keys, then
    /// values.
    pub const KV_CACHE: &str = "model_model_kv_cache_0";

    /// What the head yields, fp16 `(1, 1, rows)` each; pieces count from 1.
    pub fn logits(number: usize) -> String {
        format!("logits{number}")
    }

    /// Keys of the metadata of packages.
    pub mod metadata {
        /// Who made it.
        pub const INFO: &str = "com.anemll.info";
        /// Places of the cache.
        pub const CONTEXT_LENGTH: &str = "com.anemll.context_length";
        /// Chunks of layers.
        pub const NUM_CHUNKS: &str = "com.anemll.num_chunks";
        /// Which of them, from 1.
        pub const CHUNK_NO: &str = "com.anemll.chunk_no";
        /// Tokens of a batch.
        pub const BATCH_SIZE: &str = "com.anemll.batch_size";
        /// Bits of an index into tables of values.
        pub const LUT_BITS: &str = "com.anemll.lut_bits";
        /// The functions, with commas between them.
        pub const FUNCTIONS: &str = "com.anemll.functions";
    }

    /// Fields of `model_info.parameters` in [`META`].
    pub mod meta {
        /// Places of the cache.
        pub const CONTEXT_LENGTH: &str = "context_length";
        /// Tokens of a batch.
        pub const BATCH_SIZE: &str = "batch_size";
        /// Bits of tables, or `none`, of each kind of package.
        pub const LUTS: [&str; 3] = ["lut_embeddings", "lut_ffn", "lut_lmhead"];
        /// Chunks of layers.
        pub const NUM_CHUNKS: &str = "num_chunks";
        /// What all files begin with.
        pub const MODEL_PREFIX: &str = "model_prefix";
        /// Compiled files: embeddings, head, first chunk of layers.
        pub const FILES: [&str; 3] = ["embeddings", "lm_head", "ffn"];
        /// Pieces of the logits.
        pub const SPLIT_LM_HEAD: &str = "split_lm_head";
        /// Rows of the vocabulary.
        pub const VOCAB_SIZE: &str = "vocab_size";
        /// Rows of each piece of the logits.
        pub const LM_HEAD_CHUNK_SIZES: &str = "lm_head_chunk_sizes";
        /// The position from which on the functions that rotate a cache are called.
        pub const SLIDING_WINDOW: &str = "sliding_window";
        /// Whether batches may begin at any position.
        pub const PREFILL_DYNAMIC_SLICE: &str = "prefill_dynamic_slice";
        /// Whether layers with windows share the one cache.
        pub const SINGLE_CACHE: &str = "single_cache";
    }
}

/// The layout of the project coreml-llm-cli. Every package has a single function.
pub mod llm_cli {
    /// The file of a chunk, without its extension; chunks count from 1. The first embeds, the last is the
    /// head, those between are layers.
    pub fn chunk(prefix: &str, number: usize) -> String {
        format!("{prefix}_chunk{number}")
    }

    /// The package that moves the window of a layer's cache on, without its extension.
    pub const CACHE_PROCESSOR: &str = "cache-processor";
    /// The package that finds the likeliest tokens, without its extension.
    pub const LOGIT_PROCESSOR: &str = "logit-processor";

    // Features of the first chunk.
    /// Tokens, int32 `(1, window)`, from the left; what is behind the last one does not matter.
    pub const INPUT_IDS: &str = "input_ids";
    /// Tokens of the text, those that fill the window up included, int32 `(1)`: a multiple of the window.
    pub const FULL_SEQUENCE_LENGTH: &str = "full_sequence_length";

    // What the first chunk yields and the others take, each by its name.
    /// The hidden state, fp16 `(1, features, 1, window)`.
    pub const X: &str = "x";
    /// Tables of the rotation, fp16 `(1, 1, features of a head, window)`.
    pub const ROTATION: [&str; 2] = ["cos", "sin"];
    /// The mask, fp16 `(1, 1, window, cache + window)`.
    pub const MASK: &str = "mask";

    /// What layers yield; becomes the next [`X`].
    pub const NEW_X: &str = "new_x";

    /// What a layer has cached, keys and values, fp16 `(1, heads, features, cache)`; layers count from 0 in
    /// each chunk.
    pub fn cache(layer: usize) -> [String; 2] {
        ["k", "v"].map(|which| format!("{which}_cache_{layer}"))
    }

    /// What a layer yields for it, fp16 `(1, heads, features, window)`.
    pub fn new_cache(layer: usize) -> [String; 2] {
        cache(layer).map(|name| format!("new_{name}"))
    }

    /// What the last chunk yields if it is one piece, fp16 `(1, window, rows)`.
    pub const LOGITS: &str = "logits";

    /// What the last chunk yields of several pieces.
    pub fn logits(piece: usize, of: usize) -> String {
        if of == 1 { LOGITS.to_owned() } else { format!("{LOGITS}_{piece}") }
    }

    /// The cache processor's features for keys and values: what there was, what is new, what there is then.
    pub const CACHES: [[&str; 3]; 2] = [
        ["old_k_cache", "new_k_cache", "updated_k_cache"],
        ["old_v_cache", "new_v_cache", "updated_v_cache"],
    ];

    /// What the logit processor yields: int32 `(1, window)`.
    pub const ARGMAX: &str = "argmax";
}
