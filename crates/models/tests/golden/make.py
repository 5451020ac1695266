"""Makes the golden checkpoints: tiny random models of every architecture, run by transformers.

    python make.py [NAME ...] [--llama-cpp PYTHON]

Needs torch, transformers, safetensors, gguf, numpy, mlx. For each case it writes a folder with

    config.json, model.safetensors   the checkpoint, in the form that is published on the hub
    model.gguf                       the same weights, with the tensor names and metadata keys that
                                     llama.cpp's converter gives that architecture
    expected.json                    {"runs": [{context, ids, rows, logits}]}: logits of some rows
                                     of the prompt, by transformers in float32, eager attention

transformers reads the very files that are committed. `--llama-cpp` names a Python that has
llama-cpp-python; the GGUF files are then run by llama.cpp too, and the largest difference between
it and transformers is printed. That proves the GGUF writer below, not Baton.
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
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from cases import CASES

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))

from weights import fill, on_grid  # noqa: E402: it lies beside the folder of this script
disable_progress_bar()


def randomize(model, gemma, seed):
    """Fills all parameters with values that make every one of them matter."""

    def choose(name, shape, normal):
        if "norm" in name:
            return normal(shape, 0.3, 0.0 if gemma else 1.0)
        if "sinks" in name:
            return normal(shape, 1.0)
        if "bias" in name:
            return normal(shape, 0.3)
        if "embed" in name:
            return normal(shape, 0.2 if gemma else 1.0)
        if "lm_head" in name or "router" in name or name.endswith("gate.weight"):
            return normal(shape, 2.0 / math.sqrt(shape[-1]))
        fan_in = shape[-2] if name.endswith("_proj") and len(shape) == 3 else shape[-1]
        return normal(shape, 1.2 / math.sqrt(fan_in))

    fill(model, seed, choose)


def make_checkpoint(case, folder):
    config = case["config"]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), dtype=torch.float32
    )
    randomize(model, config["model_type"].startswith("gemma"), case["seed"])
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    # Over what transformers wrote: the spelling in which such models are published.
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def load_tensors(folder):
    with safe_open(folder / "model.safetensors", "pt") as f:
        return {name: f.get_tensor(name) for name in f.keys()}


def load_reference(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model.eval()


def quantize_experts(folder):
    """Replaces float experts of gpt-oss by MXFP4 blocks, as OpenAI publishes them."""
    tensors = load_tensors(folder)
    generator = torch.Generator().manual_seed(7)
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, cols, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, cols // 32, 16), generator=generator)
        scales = torch.randint(122, 126, (experts, rows, cols // 32), generator=generator)
        tensors[name + "_blocks"] = blocks.to(torch.uint8)
        tensors[name + "_scales"] = scales.to(torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def dequantize_experts(folder, target):
    """The same checkpoint with bf16 experts, through transformers' own unpacking."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = load_tensors(folder)
    for name in [n for n in tensors if n.endswith("_blocks")]:
        stem = name.removesuffix("_blocks")
        blocks, scales = tensors.pop(name), tensors.pop(stem + "_scales")
        unpacked = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        assert torch.equal(unpacked, unpacked.to(torch.bfloat16).float())
        tensors[stem] = unpacked.to(torch.bfloat16).contiguous()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def on_mlx_grid(matrix, group_size, bits):
    """Values that come out of MLX's quantization unchanged, with a power of two as each scale: so
    that a group's scale times an integer is exact in bf16, and it does not matter whether a program
    rounds there."""
    groups, half = matrix.float().reshape(-1, group_size), 2 ** (bits - 1)
    scales = 2 ** torch.ceil(torch.log2(groups.abs().amax(1, keepdim=True) / half))
    steps = torch.clamp(torch.round(groups / scales), -half, half - 1)
    steps[:, 0], steps[:, 1] = -half, half - 1
    return (steps * scales).reshape(matrix.shape)


def quantize_mlx(folder, target, quantization):
    """Writes an MLX affine form to `target` and sets `folder` to its dequantized weights."""
    import mlx.core as mx

    tensors, packed = load_tensors(folder), {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if tensor.dim() != 2:
            packed[name] = mx.array(tensor.float().numpy()).astype(mx.bfloat16)
            continue
        how = quantization.get(stem) or quantization
        how = {"group_size": how["group_size"], "bits": how["bits"]}
        exact = on_mlx_grid(tensor, **how)
        w, scales, biases = mx.quantize(mx.array(exact.numpy()), **how)
        scales, biases = scales.astype(mx.bfloat16), biases.astype(mx.bfloat16)
        packed[stem + ".weight"], packed[stem + ".scales"] = w, scales
        packed[stem + ".biases"] = biases
        wide = mx.dequantize(w, scales, biases, **how).astype(mx.float32)
        tensors[name] = torch.from_numpy(np.array(wide))
        assert torch.equal(tensors[name], exact)
    tensors = {k: v.float() for k, v in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    mx.save_safetensors(str(target / "model.safetensors"), packed, metadata={"format": "mlx"})


# ---- GGUF -----------------------------------------------------------------------------------------


def permute(weight, heads):
    """Rows of each head from halves (i, i + d/2) to neighbours (2i, 2i + 1)."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def swap_nibbles(blocks):
    """MXFP4 nibbles from neighbours in a byte (2i, 2i + 1) to halves (i, i + 16)."""
    low, high = blocks & 15, blocks >> 4
    values = torch.stack((low, high), dim=-1).flatten(-2)
    return values[..., :16] | (values[..., 16:] << 4)


def gguf_experts(name, tensor, tensors):
    """Splits and stacks the experts of one tensor name; yields (name, tensor, raw type)."""
    stem, kind = name.rsplit("experts.", 1)
    if kind.endswith("_scales"):
        return
    if kind.endswith("_blocks"):
        scales = tensors[name.replace("_blocks", "_scales")].unsqueeze(-1)
        packed = torch.cat((scales, swap_nibbles(tensor)), dim=-1).flatten(-2)
        mxfp4 = gguf.GGMLQuantizationType.MXFP4
        if kind.startswith("gate_up"):
            yield f"{stem}experts.gate_proj.weight", packed[:, ::2], mxfp4
            yield f"{stem}experts.up_proj.weight", packed[:, 1::2], mxfp4
        else:
            yield f"{stem}experts.down_proj.weight", packed, mxfp4
    elif kind == "gate_up_proj_bias":
        yield f"{stem}experts.gate_proj.bias", tensor[..., ::2], None
        yield f"{stem}experts.up_proj.bias", tensor[..., 1::2], None
    elif kind == "down_proj_bias":
        yield f"{stem}experts.down_proj.bias", tensor, None
    elif kind == "gate_up_proj":
        tensor = tensor.transpose(-1, -2)
        yield f"{stem}experts.gate_proj.weight", tensor[:, ::2], None
        yield f"{stem}experts.up_proj.weight", tensor[:, 1::2], None
    elif kind == "down_proj":
        yield f"{stem}experts.down_proj.weight", tensor.transpose(-1, -2), None
    else:
        index, matrix = kind.split(".", 1)
        if index == "0":
            parts, e = [], 0
            while (part := tensors.get(f"{stem}experts.{e}.{matrix}")) is not None:
                parts.append(part)
                e += 1
            yield f"{stem}experts.{matrix}", torch.stack(parts), None


def rope_metadata(writer, config):
    """RoPE metadata, and factor tensors where the format has no key for a scaling."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    writer.add_rope_freq_base(config["rope_theta"])
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "beta_fast" in scaling:
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        if "beta_slow" in scaling:
            writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
    elif kind == "longrope":
        original = config["original_max_position_embeddings"]
        ratio = config["max_position_embeddings"] / original
        if writer.arch != "phi3":
            # Of Phi-3 the factors alone tell.
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(ratio) / math.log(original)))
        for which in ("long", "short"):
            factors = np.array(scaling[f"{which}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)
    elif kind == "llama3":
        dim, factors = config["head_dim"], []
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        for i in range(0, dim, 2):
            wavelength = 2 * math.pi * config["rope_theta"] ** (i / dim)
            smooth = (original / wavelength - low) / (high - low)
            smooth = min(1.0, max(0.0, smooth))
            factors.append(1 / ((1 - smooth) / factor + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))


def gguf_metadata(writer, case):
    config = case["config"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    writer.add_name(f"tiny {config['model_type']}")
    writer.add_license("mit")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if case["gguf"] in ("llama", "smollm3", "phi3"):
        writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1.0)))
    if case["gguf"] == "phi3" or config.get("sliding_window"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    experts = config.get("num_experts", config.get("num_local_experts"))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        width = config.get("moe_intermediate_size", config["intermediate_size"])
        writer.add_expert_feed_forward_length(width)
    if case["gguf"] != "gemma2":
        rope_metadata(writer, config)
    # A model without words: logits need no tokenizer.
    writer.add_tokenizer_model("no_vocab")


def write_gguf(case, folder, wide=False):
    """Writes `model.gguf`, matrices in f16, or with `wide` in f32."""
    config, arch = case["config"], case["gguf"]
    arch_id = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(arch_id, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(folder / ("wide.gguf" if wide else "model.gguf"), arch)
    gguf_metadata(writer, case)
    tensors = load_tensors(folder)

    def add(name, tensor, raw=None):
        if name.endswith("sinks"):
            name += ".weight"
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target, f"no GGUF name for {name}"
        if raw is not None:
            writer.add_tensor(target, tensor.contiguous().numpy(), raw_dtype=raw)
            return
        tensor = tensor.float()
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        if arch in ("llama", "smollm3") and "q_proj" in name:
            tensor = permute(tensor, config["num_attention_heads"])
        if arch in ("llama", "smollm3") and "k_proj" in name:
            tensor = permute(tensor, config["num_key_value_heads"])
        single = tensor.dim() == 1 or target.endswith(".bias") or "ffn_gate_inp" in target
        array = tensor.contiguous().numpy()
        if not single and not wide:
            half = array.astype(np.float16)
            assert (half.astype(np.float32) == array).all(), f"{name} is not exact in f16"
            array = half
        writer.add_tensor(target, array)

    for name, tensor in tensors.items():
        if "experts." in name:
            for part in gguf_experts(name, tensor, tensors):
                add(*part)
        else:
            add(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- running --------------------------------------------------------------------------------------


def run_reference(case, folder):
    model, runs = load_reference(folder), []
    for run in case["runs"]:
        generator = torch.Generator().manual_seed(case["seed"] + 1000)
        ids = torch.randint(0, case["config"]["vocab_size"], (run["tokens"],), generator=generator)
        with torch.no_grad():
            logits = model(ids.unsqueeze(0)).logits[0].float()
        assert torch.isfinite(logits).all()
        rows = sorted({0, 1, run["tokens"] // 2, run["tokens"] - 2, run["tokens"] - 1})
        values = [[float(f"{v:.8g}") for v in logits[row].tolist()] for row in rows]
        runs.append({"context": run["context"], "ids": ids.tolist(), "rows": rows, "logits": values})
    return runs


def llama_cpp_difference(python, path, run):
    """Largest difference between llama.cpp's logits and the expected ones."""
    reply = subprocess.run(
        [python, HERE / "second_opinion.py", path], input=json.dumps(run), capture_output=True, text=True
    )
    if reply.returncode != 0:
        return f"failed: {reply.stderr.strip().splitlines()[-1:]}"
    return f"{np.abs(np.array(json.loads(reply.stdout)) - np.array(run['logits'])).max():.2e}"


def make(name, case, llama_cpp):
    folder, scratch = HERE / name, HERE / f".{name}"
    for path in (folder, scratch):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    make_checkpoint(case, scratch)
    shutil.copy(scratch / "config.json", folder)
    if case.get("form") == "mlx":
        quantize_mlx(scratch, folder, case["quantization"])
        config = case["config"] | {"quantization": case["quantization"]}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    elif case.get("form") == "mxfp4":
        quantize_experts(scratch)
        shutil.copy(scratch / "model.safetensors", folder)
        write_gguf(case, folder)
        dequantize_experts(scratch, scratch)
        config = case["config"] | {"quantization_config": {"quant_method": "mxfp4"}}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    elif case.get("form") == "dequantized":
        quantize_experts(scratch)
        dequantize_experts(scratch, scratch)
        shutil.copy(scratch / "model.safetensors", folder)
        write_gguf(case, folder)
    else:
        shutil.copy(scratch / "model.safetensors", folder)
        if case["gguf"]:
            write_gguf(case, folder)
    runs = run_reference(case, scratch)
    for path in folder.iterdir():
        path.chmod(0o644)
    (folder / "expected.json").write_text(json.dumps({"runs": runs}) + "\n")
    spread = [float(np.std(run["logits"])) for run in runs]
    line = f"{name:24} logit std {' '.join(f'{s:.2f}' for s in spread)}"
    if llama_cpp and case["gguf"]:
        # In f32, so that the difference is not that of its half-precision products.
        write_gguf(case, scratch, wide=True)
        if "llama_cpp" in case:
            # Where llama.cpp does otherwise, transformers is made to do so too, for this check.
            config = json.loads((scratch / "config.json").read_text()) | case["llama_cpp"]
            (scratch / "config.json").write_text(json.dumps(config))
            runs = run_reference(case, scratch)
        differences = [llama_cpp_difference(llama_cpp, scratch / "wide.gguf", r) for r in runs]
        line += f"   llama.cpp differs by {' '.join(differences)}"
        line += f" with {case['llama_cpp']}" if "llama_cpp" in case else ""
    print(line, flush=True)
    shutil.rmtree(scratch)


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
