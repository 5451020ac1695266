"""Cuts what tests/golden.rs needs out of a record of an exact forward pass.

    make.py RECORD.json > NAME.json

The record has the prompt, and under `exact` the greedy answer of a float64 forward pass (numpy, over
the GGUF's dequantized weights): token ids, the margin of each over the second best, and the ten
largest logits of the first step.
"""

import json
import sys

record = json.load(open(sys.argv[1]))
exact = record["exact"]
fields = {
    "model": record["model"],
    "what": exact["what"],
    "prompt_text": record["prompt_text"],
    "prompt_ids": record["prompt_ids"],
    "first_step_top10": [[top["id"], round(top["logit"], 5)] for top in exact["first_step_top10"]],
    "output_ids": exact["output_ids"],
    "margins": [round(margin, 4) for margin in exact["margins"]],
}
lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
print("{\n" + ",\n".join(lines) + "\n}")
