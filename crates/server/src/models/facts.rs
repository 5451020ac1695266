//! What is known of a model without loading it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_engine::{Folder, ModelText, Sampling, hex, open_model, template_source};
use baton_hub::{Entry, LocalModel, Sha256};
use baton_models::{Model, Source};
use baton_text::OutputFormat;
use serde_json::{Map, Value as Json, json};

use super::Defaults;
use crate::Result;

mod metadata;

/// What a model is, read from its files without its weights.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The name that its own files give it.
    pub title: String,
    /// Its architecture as the files spell it: `llama`, `gemma3`.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// `gguf` or `safetensors`; `coreml` for a folder of packages.
    pub format: &'static str,
    /// How its weights are stored, as Ollama names it: `Q4_K_M`, `BF16`.
    pub quantization: String,
    /// Tokens of context that it was trained for, or its packages were compiled for.
    pub context_length: usize,
    /// Features of an embedding.
    pub embedding_length: usize,
    /// Bytes of all its files.
    pub size: u64,
    /// The SHA-256 of its file; of several, that of their digests; where no digest is known, a
    /// fingerprint of the model. 64 hexadecimal digits.
    pub digest: String,
    /// When it was fetched or last changed.
    pub modified: SystemTime,
    /// The source of its chat template, exactly as its files have it.
    pub template: Option<String>,
    /// Its licence, as its files or the catalog name it.
    pub license: Option<String>,
    /// What the user has set for it, or else its files or the catalog recommend, of sampling.
    pub recommended: Sampling,
    /// What it can do.
    pub capabilities: Capabilities,
    /// What the user has set for it, if it is a model of the user's own.
    pub defaults: Defaults,
    /// These settings by their names.
    pub parameters_set: BTreeMap<String, Json>,
}

/// What a model can do, as its files tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// It continues texts.
    pub completion: bool,
    /// Its template knows tools.
    pub tools: bool,
    /// Its template knows reasoning.
    pub thinking: bool,
    /// It turns texts into vectors.
    pub embedding: bool,
}

impl Facts {
    /// Reads them from the model's files; `entry` is what the catalog has of it.
    ///
    /// # Errors
    /// If the files are damaged, or of an architecture that is not known.
    pub(super) fn gather(local: &LocalModel, entry: Option<&Entry>) -> Result<Facts> {
        let model = open_model(&local.path)?;
        Ok(Self::of(&model, local, entry))
    }

    /// As [`Facts::gather`], of files that are open already.
    pub(super) fn of(model: &Model, local: &LocalModel, entry: Option<&Entry>) -> Facts {
        let template = template_source(model);
        // What cannot be read is said when the model is loaded.
        let packages = model.packages().and_then(|folder| Folder::open(folder).ok());
        let own = ModelText::of(model).map(|text| text.sampling).unwrap_or_default();
        let catalog = entry.map(|entry| Sampling::from_names(&entry.sampling)).unwrap_or_default();
        let licence = model.licence().map(str::to_owned);
        let custom = local.custom.clone().unwrap_or_default();
        let defaults = Defaults::of(&custom);
        Facts {
            title: model.name().to_owned(),
            architecture: metadata::architecture(model),
            parameters: model.parameters(),
            format: match model.source() {
                _ if packages.is_some() || model.packaged().is_some() => "coreml",
                Source::Gguf(_) => "gguf",
                _ => "safetensors",
            },
            quantization: match packages.as_ref().and_then(Folder::weights) {
                Some(forms) => forms.to_uppercase(),
                None => metadata::quantization(model),
            },
            context_length: packages
                .as_ref()
                .map_or(model.config().context_length, Folder::context),
            embedding_length: match &model.config().embedding {
                Some(head) => head.width(model.config().hidden),
                None => model.config().hidden,
            },
            size: local.size,
            digest: digest(model, local),
            modified: modified(local),
            capabilities: match &model.config().embedding {
                Some(_) => Capabilities { embedding: true, ..Capabilities::default() },
                None => Capabilities::of(template.as_deref()),
            },
            template,
            license: custom.license.or(licence).or_else(|| entry?.license.clone()),
            recommended: defaults.sampling.or(&own).or(&catalog),
            defaults,
            parameters_set: custom.parameters,
        }
    }

    /// The number of parameters as Ollama writes it: `134.52M`, `8B`.
    pub fn parameter_size(&self) -> String {
        let n = self.parameters as f64;
        let (scaled, unit, decimals) = match n {
            1e9.. => (n / 1e9, "B", 1),
            1e6.. => (n / 1e6, "M", 2),
            1e3.. => return format!("{:.0}K", n / 1e3),
            _ => return self.parameters.to_string(),
        };
        let decimals = if scaled.fract() == 0.0 { 0 } else { decimals };
        format!("{scaled:.decimals$}{unit}")
    }

    /// The parameters that are set or recommended, by their names in Modelfiles.
    pub fn parameter_lines(&self) -> Vec<(String, Json)> {
        let Sampling { temperature, top_k, top_p, min_p, repeat_penalty, .. } = &self.recommended;
        // As short as the single-precision number is when it is written.
        let number = |value: &Option<f32>| {
            value.and_then(|v| v.to_string().parse::<f64>().ok()).map(|v| json!(v))
        };
        let all = [
            ("temperature", number(temperature)),
            ("top_k", top_k.map(|k| json!(k))),
            ("top_p", number(top_p)),
            ("min_p", number(min_p)),
            ("repeat_penalty", number(repeat_penalty)),
        ];
        let mut lines = Vec::new();
        for (name, value) in all {
            let recommended = value.filter(|_| !self.parameters_set.contains_key(name));
            lines.extend(recommended.map(|value| (name.to_owned(), value)));
        }
        for (name, value) in &self.parameters_set {
            match value {
                // One line for each.
                Json::Array(values) => {
                    lines.extend(values.iter().map(|value| (name.clone(), value.clone())));
                }
                value => lines.push((name.clone(), value.clone())),
            }
        }
        lines
    }
}

impl Capabilities {
    fn of(template: Option<&str>) -> Self {
        let format = OutputFormat::detect(template);
        Capabilities {
            completion: true,
            // It must be told of them, and how it calls them be known.
            tools: template.is_some_and(|source| source.contains("tools")) && format.calls_tools(),
            thinking: format.reasons(),
            embedding: false,
        }
    }

    /// Their names, as Ollama has them.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            ("completion", self.completion),
            ("tools", self.tools),
            ("thinking", self.thinking),
            ("embedding", self.embedding),
        ];
        all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
    }
}

/// What the files of a model say of it in full: its hyperparameters by their names in GGUF, and its
/// tensors. Lists are left out unless `verbose`.
pub(crate) struct Details {
    /// Keys and values.
    pub info: Map<String, Json>,
    /// Name, type and shape of each tensor.
    pub tensors: Vec<Json>,
}

impl Details {
    /// Reads them.
    ///
    /// # Errors
    /// If the files are damaged, or of an architecture that is not known.
    pub(super) fn read(local: &LocalModel, verbose: bool) -> Result<Details> {
        let model = open_model(&local.path)?;
        let tensors = model.source().tensors().map_err(baton_engine::Error::from)?;
        let tensor = |t: &baton_models::TensorSummary| json!({ "name": t.name, "type": t.dtype, "shape": t.shape });
        Ok(Details {
            info: metadata::info(&model, verbose),
            tensors: tensors.iter().map(tensor).collect(),
        })
    }
}

fn digest(model: &Model, local: &LocalModel) -> String {
    let known: Option<Vec<Sha256>> = local.files.iter().map(|file| file.sha256).collect();
    match known.as_deref() {
        Some([one]) => one.to_string(),
        Some(all) if !all.is_empty() => {
            let text: String = all.iter().map(Sha256::to_string).collect();
            Sha256::of(text.as_bytes()).to_string()
        }
        _ => hex(&model.fingerprint()),
    }
}

fn modified(local: &LocalModel) -> SystemTime {
    let fetched = local.fetched_at.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    let changed = || std::fs::metadata(&local.path).and_then(|data| data.modified()).ok();
    fetched.or_else(changed).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_ollama_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        baton_models::testing::Successors::endless().write(&path);
        let store = baton_hub::Store::with_settings(baton_hub::Settings::at(dir.path())).unwrap();
        let local = store.get(&baton_hub::Reference::Path(path), &mut baton_hub::Silent).unwrap();
        let tiny = Facts::gather(&local, None).unwrap();
        assert_eq!((&*tiny.architecture, &*tiny.quantization), ("llama", "F32"));
        assert_eq!((&*tiny.title, tiny.license.as_deref()), ("Tiny", Some("MIT")));
        assert_eq!(tiny.digest.len(), 64);
        let facts = |parameters| Facts { parameters, ..tiny.clone() }.parameter_size();
        for (n, text) in [
            (999, "999"),
            (1_500, "2K"),
            (134_515_008, "134.52M"),
            (270_000_000, "270M"),
            (8_000_000_000, "8B"),
            (8_030_261_312, "8.0B"),
        ] {
            assert_eq!(facts(n), text);
        }
    }

    #[test]
    fn a_folder_of_packages_is_described_by_what_it_was_compiled_to() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join("out").join(name);
        std::fs::create_dir(dir.path().join("out")).unwrap();
        baton_models::testing::Successors::endless().write(&at("embeddings.gguf"));
        let outline = Model::open(at("embeddings.gguf")).unwrap().outline();
        std::fs::write(at("outline.json"), outline).unwrap();
        let description = json!({
            "format": 3, "fingerprint": "00", "context": 96, "weights": "lut6-g16",
            "packages": [], "files": {},
        });
        std::fs::write(at("baton.json"), description.to_string()).unwrap();
        let store = baton_hub::Store::with_settings(baton_hub::Settings::at(dir.path())).unwrap();
        let reference = baton_hub::Reference::Path(dir.path().join("out"));
        let local = store.get(&reference, &mut baton_hub::Silent).unwrap();
        let facts = Facts::gather(&local, None).unwrap();
        assert_eq!((facts.format, &*facts.quantization), ("coreml", "LUT6-G16"));
        assert_eq!(facts.context_length, 96);
    }

    #[test]
    fn a_template_tells_what_a_model_can_do() {
        let names = |template| Capabilities::of(template).names();
        assert_eq!(names(None), ["completion"]);
        assert_eq!(names(Some(baton_models::testing::CHATML)), ["completion"]);
        let tools = "{% if tools %}<tools>{{ tools }}</tools> <tool_call>{% endif %}";
        assert_eq!(names(Some(tools)), ["completion", "tools"]);
        let both = format!("{tools}{{% if enable_thinking %}}<think>{{% endif %}}</think>");
        assert_eq!(names(Some(&both)), ["completion", "tools", "thinking"]);
    }
}
