"""The cases of make.py: configs as such models are published, shrunk."""


def config(model_type, architecture, **fields):
    base = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    merged = base | fields
    return {key: value for key, value in merged.items() if value is not DROP}


DROP = object()


def llama(**fields):
    return config("llama", "LlamaForCausalLM", hidden_act="silu", **fields)


def runs(*pairs):
    return [{"tokens": tokens, "context": context} for tokens, context in pairs]


PLAIN = runs((64, 256))
# transformers goes by the length of the prompt, the other programs by the context.
SHORT_AND_LONG = runs((64, 256), (264, 512))

GPT_OSS = config(
    "gpt_oss",
    "GptOssForCausalLM",
    num_hidden_layers=2,
    intermediate_size=32,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=24,
    layer_types=["sliding_attention", "full_attention"],
    hidden_act="silu",
    swiglu_limit=7.0,
    attention_bias=True,
    rope_theta=150000.0,
    max_position_embeddings=8192,
    rope_scaling={
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 256,
        "rope_type": "yarn",
        "truncate": False,
    },
)

PHI3 = config(
    "phi3",
    "Phi3ForCausalLM",
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=DROP,
    hidden_act="silu",
    pad_token_id=0,
    max_position_embeddings=2048,
    original_max_position_embeddings=256,
    sliding_window=48,
    rope_scaling={
        "type": "longrope",
        "short_factor": [1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.7, 2.0],
        "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.5, 12.0, 16.0],
    },
)

CASES = {
    "llama": {
        "config": llama(hidden_size=64, intermediate_size=96, head_dim=DROP),
        "gguf": "llama",
        "runs": PLAIN,
    },
    "llama-linear-tied": {
        "config": llama(
            tie_word_embeddings=True, rope_scaling={"type": "linear", "factor": 4.0}
        ),
        "gguf": "llama",
        "runs": PLAIN,
    },
    "llama-dynamic": {
        # GGUF has no way to say this scaling.
        "config": llama(
            max_position_embeddings=32, rope_scaling={"type": "dynamic", "factor": 4.0}
        ),
        "gguf": None,
        "runs": runs((64, 64)),
    },
    "llama3": {
        "config": llama(
            tie_word_embeddings=True,
            rope_theta=500000.0,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        "gguf": "llama",
        "runs": PLAIN,
    },
    "llama-yarn": {
        "config": llama(
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 8.0,
                "beta_slow": 1.0,
            },
        ),
        "gguf": "llama",
        "runs": PLAIN,
    },
    "llama-biases": {
        # The spelling of transformers 5: one table of RoPE parameters.
        "config": llama(
            attention_bias=True,
            mlp_bias=True,
            rope_theta=DROP,
            rope_parameters={"rope_theta": 20000.0, "rope_type": "default"},
        ),
        "gguf": None,
        "runs": PLAIN,
    },
    "mistral": {
        "config": config(
            "mistral", "MistralForCausalLM", hidden_act="silu", sliding_window=24, head_dim=DROP
        ),
        "gguf": "llama",
        "llama_cpp": {"sliding_window": None},
        "runs": PLAIN,
    },
    "qwen2": {
        "config": config(
            "qwen2",
            "Qwen2ForCausalLM",
            hidden_act="silu",
            hidden_size=64,
            head_dim=DROP,
            rope_theta=1000000.0,
            sliding_window=24,
            use_sliding_window=False,
            max_window_layers=1,
            tie_word_embeddings=True,
        ),
        "gguf": "qwen2",
        "runs": PLAIN,
    },
    "qwen2-window": {
        # Layers from max_window_layers on have the window.
        "config": config(
            "qwen2",
            "Qwen2ForCausalLM",
            hidden_act="silu",
            head_dim=DROP,
            sliding_window=24,
            use_sliding_window=True,
            max_window_layers=1,
        ),
        "gguf": None,
        "runs": PLAIN,
    },
    "qwen3": {
        "config": config(
            "qwen3",
            "Qwen3ForCausalLM",
            hidden_act="silu",
            rope_theta=1000000.0,
            sliding_window=None,
            use_sliding_window=False,
        ),
        "gguf": "qwen3",
        "runs": PLAIN,
    },
    "qwen3-moe": {
        "config": config(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            hidden_act="silu",
            intermediate_size=96,
            moe_intermediate_size=32,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            rope_theta=1000000.0,
        ),
        "gguf": "qwen3moe",
        "runs": PLAIN,
    },
    "gemma2": {
        "config": config(
            "gemma2",
            "Gemma2ForCausalLM",
            num_hidden_layers=4,
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=16,
            sliding_window=24,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=10.0,
            tie_word_embeddings=True,
        ),
        "gguf": "gemma2",
        "runs": PLAIN,
    },
    "gemma3": {
        "config": config(
            "gemma3_text",
            "Gemma3ForCausalLM",
            num_hidden_layers=7,
            intermediate_size=32,
            num_key_value_heads=1,
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=16,
            sliding_window=24,
            sliding_window_pattern=6,
            rope_theta=1000000.0,
            rope_local_base_freq=10000.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
            tie_word_embeddings=True,
        ),
        "gguf": "gemma3",
        "runs": PLAIN,
    },
    "phi3": {
        "config": PHI3,
        "gguf": "phi3",
        "llama_cpp": {"sliding_window": None},
        "runs": SHORT_AND_LONG,
    },
    "phi4-mini": {
        "config": PHI3
        | {
            "partial_rotary_factor": 0.75,
            "num_key_value_heads": 1,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.05, 1.1, 1.2, 1.35, 1.5],
                "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.5],
            },
        },
        "gguf": "phi3",
        "runs": SHORT_AND_LONG,
    },
    "smollm3": {
        "config": config(
            "smollm3",
            "SmolLM3ForCausalLM",
            num_hidden_layers=5,
            head_dim=DROP,
            hidden_act="silu",
            no_rope_layer_interval=4,
            no_rope_layers=[1, 1, 1, 0, 1],
            rope_theta=5000000.0,
            tie_word_embeddings=True,
            pad_token_id=0,
        ),
        "gguf": "smollm3",
        "runs": PLAIN,
    },
    "gpt-oss": {
        "config": GPT_OSS,
        "form": "mxfp4",
        "gguf": "gpt-oss",
        "llama_cpp": {"rope_scaling": GPT_OSS["rope_scaling"] | {"truncate": True}},
        "runs": PLAIN,
    },
    "gpt-oss-bf16": {
        "config": GPT_OSS,
        "form": "dequantized",
        "gguf": "gpt-oss",
        "llama_cpp": {"rope_scaling": GPT_OSS["rope_scaling"] | {"truncate": True}},
        "runs": PLAIN,
    },
    "llama-mlx": {
        "config": llama(hidden_size=64, intermediate_size=128, head_dim=DROP),
        "form": "mlx",
        "gguf": None,
        "quantization": {
            "group_size": 32,
            "bits": 4,
            "model.layers.1.mlp.down_proj": {"group_size": 64, "bits": 8},
        },
        "runs": PLAIN,
    },
    "llama-longrope": {
        "config": llama(
            max_position_embeddings=2048,
            original_max_position_embeddings=256,
            rope_scaling={
                "rope_type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                "long_factor": [1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0, 12.0],
            },
        ),
        "gguf": "llama",
        "runs": SHORT_AND_LONG,
    },
}

# New cases go to the end, so that the others keep their weights.
for index, case in enumerate(CASES.values()):
    case["seed"] = index + 1
CASES["gpt-oss-bf16"]["seed"] = CASES["gpt-oss"]["seed"]
