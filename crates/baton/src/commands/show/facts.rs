//! Gathering what `baton show` prints.

use baton_coreml::Folder;
use baton_engine::{ModelText, Sampling, open_model, template_source};
use baton_hub::{Entry, LocalModel};
use baton_models::{Model, ModelConfig, Packaged, RopeScaling};
use baton_text::Tokenizer;
use baton_weights::GgufFile;
use serde_json::json;

use crate::failure::hinted;
use crate::format;

/// Everything there is to say of a model.
pub struct Facts {
    local: LocalModel,
    model: Model,
    /// The folder of packages that it is there as.
    packages: Option<Folder>,
    /// The licence, as the files or else the catalog name it.
    pub license: Option<String>,
    /// A model without a usable tokenizer can still be shown.
    text: Result<ModelText, baton_engine::Error>,
    /// Sampling parameters that its files, or else the catalog, recommend.
    sampling: Sampling,
}

impl Facts {
    /// Opens the model's files; `entry` is what the catalog has of it.
    ///
    /// # Errors
    /// If they are damaged, or of an architecture that is not known.
    pub fn gather(local: LocalModel, entry: Option<&Entry>) -> anyhow::Result<Self> {
        let model = open_model(&local.path)?;
        let packages = model.packages().filter(|_| model.packaged().is_none());
        let packages = packages.map(Folder::open).transpose()?;
        let text = ModelText::of(&model);
        let license = model.licence().map(str::to_owned);
        let license = license.or_else(|| entry?.license.clone());
        let own = text.as_ref().map(|text| text.sampling.clone()).unwrap_or_default();
        let catalog = entry.map(|entry| Sampling::from_names(&entry.sampling));
        let sampling = own.or(&catalog.unwrap_or_default());
        Ok(Self { local, model, packages, license, text, sampling })
    }

    /// The source of the chat template, exactly as the model has it.
    pub fn template_source(&self) -> Option<String> {
        template_source(&self.model)
    }

    /// The sampling parameters that are recommended, those that there are.
    pub fn parameters(&self) -> Vec<[String; 2]> {
        let Sampling { temperature, top_k, top_p, min_p, repeat_penalty, .. } = &self.sampling;
        let text = |value: &Option<f32>| value.map(|value| value.to_string());
        let all = [
            ("temperature", text(temperature)),
            ("top_k", top_k.map(|k| k.to_string())),
            ("top_p", text(top_p)),
            ("min_p", text(min_p)),
            ("repeat_penalty", text(repeat_penalty)),
        ];
        all.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).collect()
    }

    /// Lines of two columns for people.
    pub fn rows(&self) -> Vec<[String; 2]> {
        let mut rows = Vec::new();
        let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
        row("Model", self.local.name.clone());
        row("  title", self.model.name().to_owned());
        row("  files", self.local.path.display().to_string());
        if let Some(source) = &self.local.source {
            row("  source", source.clone());
        }
        row("  licence", self.license.clone().unwrap_or_else(|| "not stated".into()));
        row("Architecture", self.model.architecture().to_owned());
        match self.model.packaged() {
            Some(packaged) => rows.extend(packages(packaged)),
            None => rows.extend(self.weights()),
        }
        let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
        match &self.text {
            Ok(ModelText { tokenizer, .. }) => {
                row("Tokenizer", format!("{} tokens", tokenizer.vocab_size()));
                for (name, value) in specials(tokenizer) {
                    row(&format!("  {name}"), value);
                }
            }
            Err(error) => row("Tokenizer", format!("not usable: {error}")),
        }
        row("Template", self.template_line());
        let sampling = match self.parameters().as_slice() {
            [] => "no recommendation".to_owned(),
            all => all.iter().map(|[k, v]| format!("{k} {v}")).collect::<Vec<_>>().join(", "),
        };
        row("Sampling", sampling);
        rows
    }

    /// The sizes of a model whose description is there, and its weights.
    fn weights(&self) -> Vec<[String; 2]> {
        let mut rows = Vec::new();
        let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
        let (count, n) = (format::count(self.model.parameters()), self.model.parameters());
        row("  parameters", format!("{count} ({n})"));
        row("  context", format!("{} tokens", self.context()));
        for (name, value) in shape(self.model.config()) {
            row(&format!("  {name}"), value);
        }
        if let Some(folder) = &self.packages {
            let (n, forms) = (folder.len(), folder.weights().unwrap_or("weights of no known form"));
            let size = folder.weight_bytes().map(|bytes| format!(", {}", format::bytes(bytes)));
            let packages = if n == 1 { "package" } else { "packages" };
            let size = size.unwrap_or_default();
            row("Packages", format!("{n} Core ML {packages}, {forms}{size}"));
            row("  functions", folder.functions().join(", "));
            return rows;
        }
        let bytes = self.model.stored_bytes();
        let bits = bytes as f64 * 8.0 / self.model.parameters().max(1) as f64;
        row("Tensors", format!("{}, {bits:.2} bits per weight", format::bytes(bytes)));
        for kind in self.model.quantization() {
            let (tensors, size) = (kind.tensors, format::bytes(kind.bytes as u64));
            let value = format!("{:<8} {tensors:>4} in {size}", kind.dtype);
            row(&format!("  {}", kind.kind), value);
        }
        rows
    }

    /// The packages for programs, if it is there as such.
    fn packages_json(&self) -> Option<serde_json::Value> {
        if let Some(packaged) = self.model.packaged() {
            return Some(json!({
                "layout": packaged.layout, "count": packaged.packages.len(),
                "files": packaged.packages, "weights": null, "functions": null,
            }));
        }
        let folder = self.packages.as_ref()?;
        Some(json!({
            "layout": folder.layout(), "count": folder.len(), "files": null,
            "weights": folder.weights(), "functions": folder.functions(),
        }))
    }

    /// Most tokens of a text: what the packages were compiled for, or what the model was trained for.
    fn context(&self) -> usize {
        let trained = self.model.config().context_length;
        self.packages.as_ref().map_or(trained, Folder::context)
    }

    fn template_line(&self) -> String {
        match self.template_source() {
            Some(source) => format!("{} bytes (--template prints it)", source.len()),
            None => "none: use --raw, or a model that was trained to chat".into(),
        }
    }

    /// All of it for programs.
    pub fn json(&self) -> serde_json::Value {
        let config = self.model.config();
        // Those of the source are not here.
        let kinds = match &self.packages {
            Some(_) => Vec::new(),
            None => self.model.quantization(),
        };
        let tensors: Vec<_> = kinds
            .into_iter()
            .map(|kind| {
                json!({
                    "kind": kind.kind, "dtype": kind.dtype, "tensors": kind.tensors,
                    "elements": kind.elements, "bytes": kind.bytes,
                })
            })
            .collect();
        let tokenizer = self.text.as_ref().ok().map(|ModelText { tokenizer, .. }| {
            json!({
                "vocabulary": tokenizer.vocab_size(), "bos": tokenizer.bos(),
                "eos": tokenizer.eos(), "end_tokens": tokenizer.eog(),
                "adds_bos": tokenizer.add_bos(),
            })
        });
        let sampling: serde_json::Map<_, _> =
            self.parameters().into_iter().map(|[k, v]| (k, json!(v.parse::<f64>().ok()))).collect();
        json!({
            "name": self.local.name,
            "title": self.model.name(),
            "path": self.local.path,
            "source": self.local.source,
            "license": self.license,
            "architecture": self.model.architecture(),
            "parameters": self.model.parameters(),
            "bytes": match &self.packages {
                Some(folder) => folder.weight_bytes(),
                None => Some(self.model.stored_bytes()),
            },
            "context": self.context(),
            "packages": self.packages_json(),
            "layers": config.layers.len(),
            "hidden": config.hidden,
            "ffn": config.ffn,
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "vocabulary": config.vocab,
            "tied_embeddings": config.tied,
            "embedding": config.embedding.as_ref().map(|e| json!({
                "dimensions": e.width(config.hidden), "pooling": format!("{:?}", e.pooling),
            })),
            "experts": config.experts.as_ref().map(|e| json!({ "count": e.count, "used": e.used })),
            "tensors": tensors,
            "tokenizer": tokenizer,
            "template": self.template_source(),
            "sampling": sampling,
        })
    }
}

/// What is known of a model of which only packages are there.
fn packages(packaged: &Packaged) -> Vec<[String; 2]> {
    let Packaged { layout, sizes, packages, .. } = packaged;
    let cache = format!("{} heads of {} for keys and values", sizes.kv_heads, sizes.head_dim);
    let bytes = packages.iter().map(|(_, bytes)| bytes).sum();
    let mut rows = [
        ["  context", &format!("{} tokens", sizes.context)],
        ["  layers", &sizes.layers.to_string()],
        ["  hidden size", &sizes.hidden.to_string()],
        ["  cache", &cache],
        ["  vocabulary", &sizes.vocab.to_string()],
        ["Packages", &format!("{}, laid out for {layout}", format::bytes(bytes))],
    ]
    .map(|row| row.map(str::to_owned))
    .to_vec();
    let package = |(name, bytes): &(String, u64)| [format!("  {name}"), format::bytes(*bytes)];
    rows.extend(packages.iter().map(package));
    rows
}

/// The sizes that people compare models by.
fn shape(config: &ModelConfig) -> Vec<(&'static str, String)> {
    let windows: Vec<_> = config.layers.iter().filter_map(|layer| layer.window).collect();
    let mut shape = vec![
        ("layers", config.layers.len().to_string()),
        ("hidden size", config.hidden.to_string()),
        (
            "heads",
            format!(
                "{} of {}, {} for keys and values",
                config.heads, config.head_dim, config.kv_heads
            ),
        ),
        ("feed-forward", config.ffn.to_string()),
        ("vocabulary", format!("{}{}", config.vocab, if config.tied { ", tied" } else { "" })),
        ("rotation", rotation(config)),
    ];
    if let Some(&window) = windows.first() {
        let (some, all) = (windows.len(), config.layers.len());
        shape.push(("window", format!("{window} tokens in {some} of {all} layers")));
    }
    if let Some(head) = &config.embedding {
        let (width, how) = (head.width(config.hidden), head.pooling);
        shape.push(("embedding", format!("{width} elements, {how:?} pooling")));
    }
    if let Some(experts) = &config.experts {
        let (count, used) = (experts.count, experts.used);
        shape.push(("experts", format!("{count}, of which {used} are used for a token")));
    }
    shape
}

fn rotation(config: &ModelConfig) -> String {
    if config.encoder.is_some_and(|encoder| encoder.learned_positions) {
        return "none: positions are embedded".into();
    }
    let rope = &config.rope;
    let scaling = match &rope.scaling {
        RopeScaling::None => return format!("base {}", rope.theta),
        RopeScaling::Linear { factor } => format!("linear ×{factor}"),
        RopeScaling::Dynamic { factor, .. } => format!("dynamic ×{factor}"),
        RopeScaling::Llama3 { factor, .. } => format!("llama3 ×{factor}"),
        RopeScaling::Yarn { factor, .. } => format!("yarn ×{factor}"),
        RopeScaling::LongRope { .. } => "longrope".into(),
        RopeScaling::Divisors(_) => "a divisor for each pair".into(),
    };
    format!("base {}, scaling {scaling}", rope.theta)
}

fn specials(tokenizer: &Tokenizer) -> Vec<(&'static str, String)> {
    let named = |id: u32| format!("{} {:?}", id, tokenizer.token(id).unwrap_or_default());
    let mut lines = Vec::new();
    if let Some(bos) = tokenizer.bos() {
        let added = if tokenizer.add_bos() { ", put before texts" } else { "" };
        lines.push(("begin", format!("{}{added}", named(bos))));
    }
    let ends: Vec<_> = tokenizer.eog().iter().map(|&id| named(id)).collect();
    lines.push(("end", ends.join(", ")));
    lines
}

/// The metadata of a GGUF file, one line for each key.
///
/// # Errors
/// If it is no GGUF file, or a damaged one.
pub fn metadata(local: &LocalModel) -> anyhow::Result<Vec<String>> {
    if local.path.is_dir() {
        let file = local.path.join("config.json");
        let problem = format!("{} is no GGUF file", local.path.display());
        return Err(hinted(problem, format_args!("read {}", file.display())));
    }
    let file = GgufFile::open(&local.path)?;
    Ok(file.metadata().iter().map(|(key, value)| format!("{key} = {}", value.summary())).collect())
}
