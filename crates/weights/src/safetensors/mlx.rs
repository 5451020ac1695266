//! How MLX states in `config.json` which layers are quantized, and how.

use std::collections::HashMap;

use serde_json::Value;

/// The `quantization` of a `config.json`.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantization {
    default: Option<Scheme>,
    layers: HashMap<String, Option<Scheme>>,
}

/// How one layer is quantized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scheme {
    pub(super) mode: String,
    pub(super) bits: u64,
    pub(super) group_size: u64,
}

impl Quantization {
    /// What a `config.json` says. MLX writes the same block under two keys; under the second one,
    /// other programs put theirs, which name a `quant_method`.
    pub(super) fn of(config: &Value) -> Result<Self, String> {
        let block = match (&config["quantization"], &config["quantization_config"]) {
            (Value::Object(block), _) => block,
            (_, Value::Object(block)) if !block.contains_key("quant_method") => block,
            _ => return Ok(Self::default()),
        };
        let default = Some(Scheme::of(block).map_err(|e| format!("quantization: {e}"))?);
        let mut layers = HashMap::new();
        for (key, value) in block {
            let scheme = match value {
                Value::Bool(true) => default.clone(),
                Value::Bool(false) => None,
                Value::Object(layer) => {
                    Some(Scheme::of(layer).map_err(|e| format!("quantization of {key:?}: {e}"))?)
                }
                _ => continue,
            };
            layers.insert(key.clone(), scheme);
        }
        Ok(Quantization { default, layers })
    }

    /// How the layer of that path (a tensor's name without `.weight`) is quantized.
    pub(super) fn scheme(&self, layer: &str) -> Option<&Scheme> {
        self.layers.get(layer).unwrap_or(&self.default).as_ref()
    }
}

impl Scheme {
    fn of(block: &serde_json::Map<String, Value>) -> Result<Self, String> {
        let mode = match block.get("mode") {
            None | Some(Value::Null) => "affine",
            Some(Value::String(mode)) => mode,
            Some(other) => return Err(format!("mode should be a string, found {other}")),
        };
        let (group_size, bits) = match mode {
            "affine" => (64, 4),
            "nvfp4" => (16, 4),
            "mxfp8" => (32, 8),
            _ => (32, 4),
        };
        let number = |key: &str, default: u64| match block.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(v) => {
                v.as_u64().ok_or_else(|| format!("{key} should be a whole number, found {v}"))
            }
        };
        let (bits, group_size) = (number("bits", bits)?, number("group_size", group_size)?);
        Ok(Scheme { mode: mode.to_owned(), bits, group_size })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scheme(bits: u64, group_size: u64) -> Scheme {
        Scheme { mode: "affine".to_owned(), bits, group_size }
    }

    #[test]
    fn layers_override_the_default() {
        let block = json!({
            "bits": 4, "group_size": 32, "quant_note": "text",
            "a.b": {"bits": 8, "group_size": 128}, "c": false, "d": true, "e": {"bits": 6},
        });
        for key in ["quantization", "quantization_config"] {
            let q = Quantization::of(&json!({ key: block })).unwrap();
            assert_eq!(q.scheme("x"), Some(&scheme(4, 32)));
            assert_eq!(q.scheme("a.b"), Some(&scheme(8, 128)));
            assert_eq!(q.scheme("c"), None);
            assert_eq!(q.scheme("d"), Some(&scheme(4, 32)));
            // What a layer leaves out is MLX's default, not the model's.
            assert_eq!(q.scheme("e"), Some(&scheme(6, 64)));
        }
    }

    #[test]
    fn others_quantizations_are_not_ours() {
        let gptq = json!({"quantization_config": {"quant_method": "gptq", "bits": 4}});
        assert_eq!(Quantization::of(&gptq).unwrap().scheme("x"), None);
        assert_eq!(Quantization::of(&Value::Null).unwrap().scheme("x"), None);
    }

    #[test]
    fn wrong_types_are_named() {
        let bad = json!({"quantization": {"bits": -4}});
        let error = Quantization::of(&bad).unwrap_err();
        assert_eq!(error, "quantization: bits should be a whole number, found -4");
        let bad = json!({"quantization": {"x": {"mode": 3}}});
        assert!(Quantization::of(&bad).unwrap_err().contains("quantization of \"x\": mode"));
    }
}
