"""Makes the golden embedding models: tiny random ones of every architecture, run by
sentence-transformers from text to vector.

    python make.py [NAME ...] [--llama-cpp PYTHON]

Needs torch, transformers, sentence-transformers, safetensors, gguf, numpy. For each case it writes a
folder as sentence-transformers writes and reads it (config.json, model.safetensors, tokenizer.json,
modules.json, 1_Pooling, ...), the same weights as `model.gguf` with the names and keys that
llama.cpp's converter gives them, and

    expected.json    {"texts": [{text, ids, vector}]}: what sentence-transformers makes of some texts,
                     in float32, one text at a time, brought to length 1

`--llama-cpp` names a Python that has llama-cpp-python; the GGUF files are then run by llama.cpp too,
and the smallest cosine with the expected vectors is printed. That proves the GGUF writer below.
"""

import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys

import gguf
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel
from transformers.utils.logging import disable_progress_bar

import words
from cases import CASES

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))

from weights import fill, on_grid  # noqa: E402: it lies beside the folder of this script
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "hello, world!",
    "Playing with 7 foxes, again and again: the fox, the dog, the fox, the dog, the quick world.",
    "Grüße — 你好",
    "a",
    "",
]
disable_progress_bar()


def randomize(model, gemma, seed):
    """Fills all parameters with values that make every one of them matter."""

    def choose(name, shape, normal):
        if name.endswith("bias"):
            return normal(shape, 0.3)
        if "norm" in name.lower():
            return normal(shape, 0.3, 0.0 if gemma else 1.0)
        if "embed" in name:
            return normal(shape, 0.2 if gemma else 1.0)
        return normal(shape, 1.2 / math.sqrt(shape[-1]))

    fill(model, seed, choose)


def write_json(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def make_checkpoint(case, folder):
    tokenizer, _ = words.TOKENIZERS[case["tokenizer"]]()
    config = case["config"] | {"vocab_size": tokenizer.get_vocab_size()}
    write_json(folder / "config.json", config)
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    randomize(model, config["model_type"].startswith("gemma"), case["seed"])
    model.to(torch.bfloat16).save_pretrained(folder)
    write_json(folder / "config.json", config)
    words.wrap(tokenizer, case["tokenizer"]).save_pretrained(folder)
    make_modules(case, folder, config["hidden_size"])
    for name in ["generation_config.json", "special_tokens_map.json"]:
        (folder / name).unlink(missing_ok=True)


def make_modules(case, folder, width):
    kinds = ["Transformer", "Pooling"] + ["Dense"] * len(case.get("dense", []))
    kinds += ["Normalize"] if case.get("normalize", True) else []
    modules = []
    for index, kind in enumerate(kinds):
        path = "" if index == 0 else f"{index}_{kind}"
        kind = f"sentence_transformers.models.{kind}"
        modules.append({"idx": index, "name": str(index), "path": path, "type": kind})
    write_json(folder / "modules.json", modules)
    limit = {"max_seq_length": case["max_tokens"], "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", limit)
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]
    modes += ["weightedmean_tokens", "lasttoken"]
    pooling = {f"pooling_mode_{mode}": mode == case["pooling"] for mode in modes}
    pooling = {"word_embedding_dimension": width} | pooling | {"include_prompt": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    generator = torch.Generator().manual_seed(case["seed"] + 500)
    for index, outputs in enumerate(case.get("dense", []), start=2):
        config = {"in_features": width, "out_features": outputs, "bias": False}
        config["activation_function"] = "torch.nn.modules.linear.Identity"
        write_json(folder / f"{index}_Dense" / "config.json", config)
        weight = torch.randn(outputs, width, generator=generator) / math.sqrt(width)
        tensors = {"linear.weight": on_grid(weight).to(torch.bfloat16)}
        save_file(tensors, folder / f"{index}_Dense" / "model.safetensors", {"format": "pt"})
        width = outputs


# ---- GGUF -----------------------------------------------------------------------------------------


def load_tensors(path):
    with safe_open(path, "pt") as f:
        return {name: f.get_tensor(name).float() for name in f.keys()}


def gguf_metadata(writer, case, vocab):
    config = case["config"]
    heads = config["num_attention_heads"]
    writer.add_name(f"tiny {case['gguf']}")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_pooling_type(
        {
            "mean_tokens": gguf.PoolingType.MEAN,
            "cls_token": gguf.PoolingType.CLS,
            "lasttoken": gguf.PoolingType.LAST,
        }[case["pooling"]]
    )
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_token_type_count(config["type_vocab_size"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("use_bidirectional_attention"):
        writer.add_sliding_window(config["sliding_window"])
    if "rope_theta" in config:
        writer.add_rope_freq_base(config["rope_theta"])
    if "rope_parameters" in config:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    width = config["hidden_size"]
    for index, outputs in enumerate(case.get("dense", []), start=2):
        writer.add_uint32(f"{case['gguf']}.dense_{index}_feat_in", width)
        writer.add_uint32(f"{case['gguf']}.dense_{index}_feat_out", outputs)
        width = outputs
    vocab(writer)


def write_gguf(case, folder, target):
    """Writes the file, matrices in f16, or for a target called `wide.gguf` in f32."""
    config, arch = case["config"], case["gguf"]
    arch_id = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(arch_id, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(target, arch)
    gguf_metadata(writer, case, words.TOKENIZERS[case["tokenizer"]]()[1])

    def add(name, tensor):
        array = tensor.contiguous().numpy()
        single = tensor.dim() == 1 or name.startswith(("token_types", "position_embd"))
        if not single and target.name != "wide.gguf":
            half = array.astype(np.float16)
            assert (half.astype(np.float32) == array).all(), f"{name} is not exact in f16"
            array = half
        writer.add_tensor(name, array)

    for name, tensor in load_tensors(folder / "model.safetensors").items():
        if name.startswith("pooler"):
            continue
        if arch == "gemma-embedding" and name.endswith("norm.weight"):
            tensor = tensor + 1
        # Decoders without a head are saved without the prefix that the table of names expects.
        name = name if case["config"].get("layer_norm_eps") else f"model.{name}"
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found, f"no GGUF name for {name}"
        add(found, tensor)
    for index, _ in enumerate(case.get("dense", []), start=2):
        dense = load_tensors(folder / f"{index}_Dense" / "model.safetensors")
        add(f"dense_{index}.weight", dense["linear.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- running --------------------------------------------------------------------------------------


def run_reference(folder):
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs=options)
    texts = []
    for text in TEXTS:
        ids = model.tokenizer(text)["input_ids"]
        vector = model.encode([text], batch_size=1, normalize_embeddings=True)[0]
        assert np.isfinite(vector).all() and len(ids) <= model.max_seq_length
        vector = [float(f"{v:.8g}") for v in vector.tolist()]
        texts.append({"text": text, "ids": ids, "vector": vector})
    return texts


def llama_cpp_cosine(python, path, texts):
    """Smallest cosine between llama.cpp's vectors and the expected ones."""
    reply = subprocess.run(
        [python, HERE / "second_opinion.py", path],
        input=json.dumps([text["ids"] for text in texts]),
        capture_output=True,
        text=True,
    )
    if reply.returncode != 0:
        return f"failed: {reply.stderr.strip().splitlines()[-1:]}"
    found = np.array(json.loads(reply.stdout))
    expected = np.array([text["vector"] for text in texts])
    return f"{(found * expected).sum(1).min():.6f}"


def make(name, case, llama_cpp):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make_checkpoint(case, folder)
    texts = run_reference(folder)
    write_json(folder / "expected.json", {"texts": texts})
    write_gguf(case, folder, folder / "model.gguf")
    if "published" in case:
        # transformers reads another spelling of the config than the one that is published.
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        write_json(folder / "config.json", case["published"] | {"vocab_size": vocab_size})
    lengths = [len(text["ids"]) for text in texts]
    vectors = np.array([text["vector"] for text in texts])
    cosines = (vectors @ vectors.T)[np.triu_indices(len(texts), 1)]
    line = f"{name:18} tokens {lengths}, cosines {cosines.min():.2f} to {cosines.max():.2f}"
    if llama_cpp:
        write_gguf(case, folder, folder / "wide.gguf")
        line += f", llama.cpp {llama_cpp_cosine(llama_cpp, folder / 'wide.gguf', texts)}"
        (folder / "wide.gguf").unlink()
    print(line, flush=True)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases to make; all if none is named")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="check the GGUF files by llama.cpp")
    options = parser.parse_args()
    unknown = set(options.names) - set(CASES)
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    for name, case in CASES.items():
        if not options.names or name in options.names:
            make(name, case, options.llama_cpp)


if __name__ == "__main__":
    main()
