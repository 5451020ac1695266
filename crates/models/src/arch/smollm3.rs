//! SmolLM3: a Llama whose every fourth layer does not rotate.

use baton_graph::RopeLayout;

use super::Family;
use crate::hyper::Key;

const USE_WINDOW: Key = Key { json: "use_sliding_window", gguf: "" };
const ROTATES: Key = Key { json: "no_rope_layers", gguf: "" };
const INTERVAL: Key = Key { json: "no_rope_layer_interval", gguf: "" };

/// SmolLM3.
pub(crate) const SMOLLM3: Family = Family {
    name: "SmolLM3",
    model_types: &["smollm3"],
    gguf: &["smollm3"],
    checkpoint_names: &[],
    gguf_names: &[],
    configure: |h, config| {
        if h.is_gguf() {
            config.rope_layout = RopeLayout::Interleaved;
        }
        // Despite the name, a 1 in the list says that the layer rotates.
        let rotates = h.flags_opt(ROTATES)?;
        if rotates.as_ref().is_some_and(|list| list.len() != config.layers.len()) {
            return Err(h.bad(ROTATES, "does not have one entry for each layer"));
        }
        let interval = h.usize_opt(INTERVAL)?.unwrap_or(4);
        if interval == 0 {
            return Err(h.bad(INTERVAL, "is 0"));
        }
        for (i, layer) in config.layers.iter_mut().enumerate() {
            layer.no_rope = match &rotates {
                Some(list) => !list[i],
                None => (i + 1) % interval == 0,
            };
        }
        config.tie_by_default(h)?;
        if h.bool_opt(USE_WINDOW)?.unwrap_or(false) {
            let no_rope: Vec<bool> = config.layers.iter().map(|layer| layer.no_rope).collect();
            return config.set_windows(h, h.window()?, |i| no_rope[i]);
        }
        Ok(())
    },
    defaults: &[],
    prepare: None,
};
