"""Writes minilm.json: what sentence-transformers makes of some texts with all-MiniLM-L6-v2.

    python embeddings.py FOLDER

Needs torch, transformers, sentence-transformers. FOLDER is the model as scripts/test-data.sh fetches it.
Vectors are computed in float32, one text at a time.
"""

import json
import pathlib
import sys

import torch
from sentence_transformers import SentenceTransformer

TEXTS = [
    "Why is the sky blue?",
    "Sunlight is scattered by the molecules of the air, and short waves more than long ones.",
    "The cat sat on the mat.",
    "Ein Satz auf Deutsch: Grüße aus Köln, naïve façade — ½ € 你好 🙂",
    "def add(a, b):\n    return a + b  # [MASK] [SEP]",
    "",
    "Encoders read a text in both directions. " * 24,
]

options = {"dtype": torch.float32, "attn_implementation": "eager"}
model = SentenceTransformer(sys.argv[1], device="cpu", model_kwargs=options)
texts = []
for text in TEXTS:
    # As ordinary text: control tokens in it are words like any other.
    plain = text.replace("[MASK]", "[ MASK ]").replace("[SEP]", "[ SEP ]")
    ids = model.tokenizer(plain)["input_ids"]
    assert len(ids) <= model.max_seq_length, len(ids)
    vector = [float(f"{v:.6g}") for v in model.encode([plain], batch_size=1)[0].tolist()]
    texts.append({"text": text, "tokens": len(ids), "vector": vector})
path = pathlib.Path(__file__).parent / "minilm.json"
path.write_text(json.dumps({"texts": texts}) + "\n")
print([text["tokens"] for text in texts])
