"""Prints the vectors that llama.cpp makes of lists of token ids, of length 1, as JSON."""

import json
import sys

import llama_cpp
import numpy as np

model = llama_cpp.Llama(sys.argv[1], embedding=True, n_ctx=256, n_batch=256, n_ubatch=256, verbose=False)
vectors = []
for ids in json.load(sys.stdin):
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, True
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
    assert llama_cpp.llama_decode(model.ctx, batch) == 0
    vector = llama_cpp.llama_get_embeddings_seq(model.ctx, 0)
    size = llama_cpp.llama_model_n_embd(model.model)
    vector = np.array([vector[i] for i in range(size)])
    vectors.append((vector / np.linalg.norm(vector)).tolist())
    llama_cpp.llama_batch_free(batch)
print(json.dumps(vectors))
