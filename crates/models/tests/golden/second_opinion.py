"""Logits of one GGUF file by llama.cpp, for make.py: `second_opinion.py FILE < run.json > logits.json`."""

import ctypes
import json
import sys

import llama_cpp as lc
import numpy as np


def main():
    run = json.load(sys.stdin)
    ids = run["ids"]

    @lc.llama_log_callback
    def quiet(level, text, data):
        if level >= 4:
            sys.stderr.write(text.decode(errors="replace"))

    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lc.llama_model_load_from_file(sys.argv[1].encode(), params)
    assert model, "llama.cpp does not load the file"
    context = lc.llama_context_default_params()
    # llama.cpp too picks its RoPE table by the context; it rounds that up to a multiple of 256.
    context.n_ctx = run["context"]
    context.n_batch = context.n_ubatch = 512
    context.n_threads = context.n_threads_batch = 1
    context.type_k = context.type_v = 0
    context.flash_attn_type = 0
    ctx = lc.llama_init_from_model(model, context)
    assert ctx, "llama.cpp does not make a context"
    batch = lc.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    assert lc.llama_decode(ctx, batch) == 0, "llama.cpp does not decode"
    width = len(run["logits"][0])
    rows = [np.ctypeslib.as_array(lc.llama_get_logits_ith(ctx, r), (width,)) for r in run["rows"]]
    json.dump([row.tolist() for row in rows], sys.stdout)


if __name__ == "__main__":
    main()
