//! Where templates come from: GGUF metadata, `tokenizer_config.json`, `chat_template.jinja`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use baton_weights::{Metadata, read_regular};

use super::ChatTemplate;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
const GGUF_KEY: &str = "tokenizer.chat_template";

/// The templates of a model by name. Most have one; some have a second for the use of tools.
#[derive(Clone, Debug, Default)]
pub struct ChatTemplates {
    named: BTreeMap<String, ChatTemplate>,
}

impl ChatTemplates {
    /// The templates in the metadata of a GGUF file; none is not an error.
    ///
    /// # Errors
    ///
    /// A template that is not valid Jinja.
    pub fn from_gguf(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Self> {
        let mut templates = Self::default();
        for (key, value) in metadata.iter() {
            let Some(source) = value.as_str() else { continue };
            let name = match key.strip_prefix(GGUF_KEY) {
                Some("") => DEFAULT,
                Some(rest) => match rest.strip_prefix('.') {
                    Some(name) => name,
                    None => continue,
                },
                None => continue,
            };
            templates.add(name, source, tokenizer)?;
        }
        Ok(templates)
    }

    /// The templates in the folder of a `tokenizer.json`: `chat_template.jinja`, or else those in
    /// `tokenizer_config.json`; none is not an error.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or a template that is not valid Jinja.
    pub fn from_folder(folder: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.as_ref().join(name);
            match read_regular(&path) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(Error::Read { path, source }),
            }
        };
        let mut templates = match read("tokenizer_config.json")? {
            Some(config) => Self::from_tokenizer_config(&config, tokenizer)?,
            None => Self::default(),
        };
        if let Some(source) = read("chat_template.jinja")? {
            templates.add(DEFAULT, &String::from_utf8_lossy(&source), tokenizer)?;
        }
        Ok(templates)
    }

    /// The templates in a `tokenizer_config.json`: one, or a list with names.
    ///
    /// # Errors
    ///
    /// Bytes that are not JSON, or a template that is not valid Jinja.
    pub fn from_tokenizer_config(bytes: &[u8], tokenizer: &Tokenizer) -> Result<Self> {
        let config = crate::tokenizer::json::parse("tokenizer_config.json", bytes)?;
        let mut templates = Self::default();
        match &config["chat_template"] {
            serde_json::Value::String(source) => templates.add(DEFAULT, source, tokenizer)?,
            serde_json::Value::Array(list) => {
                for entry in list {
                    if let (Some(name), Some(source)) =
                        (entry["name"].as_str(), entry["template"].as_str())
                    {
                        templates.add(name, source, tokenizer)?;
                    }
                }
            }
            _ => {}
        }
        Ok(templates)
    }

    fn add(&mut self, name: &str, source: &str, tokenizer: &Tokenizer) -> Result<()> {
        let token = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
        let (bos, eos) = (token(tokenizer.bos()), token(tokenizer.eos()));
        let template = ChatTemplate::new(source, bos.as_deref(), eos.as_deref())?;
        self.named.insert(name.to_owned(), template);
        Ok(())
    }

    /// The template for a conversation, `with_tools` or without.
    ///
    /// # Errors
    ///
    /// The model has no template.
    pub fn choose(&self, with_tools: bool) -> Result<&ChatTemplate> {
        let tool_use = self.named.get(TOOL_USE).filter(|_| with_tools);
        tool_use.or_else(|| self.named.get(DEFAULT)).ok_or_else(|| {
            if self.named.is_empty() { Error::NoTemplate } else { self.missing(DEFAULT) }
        })
    }

    /// The template of a name.
    ///
    /// # Errors
    ///
    /// The model has no template of this name.
    pub fn get(&self, name: &str) -> Result<&ChatTemplate> {
        self.named.get(name).ok_or_else(|| self.missing(name))
    }

    /// The names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// Whether the model has no template at all.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    fn missing(&self, name: &str) -> Error {
        let known = self.names().collect::<Vec<_>>().join(", ");
        Error::NoSuchTemplate { name: name.to_owned(), known }
    }
}

/// The source without `{% generation %}` and `{% endgeneration %}`, which mark the answers in
/// training data and write nothing. A block that does nothing takes their place, so that white
/// space around them is trimmed as before.
pub(super) fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%").or_else(|| rest.find("{#")) {
        // Comments are copied whole: a tag in them is no tag.
        let open = rest.find("{#").map_or(open, |comment| comment.min(open));
        if rest[open..].starts_with("{#") {
            let close = rest[open..].find("#}").map_or(rest.len(), |close| open + close + 2);
            result.push_str(&rest[..close]);
            rest = &rest[close..];
            continue;
        }
        let inside = open + 2;
        result.push_str(&rest[..inside]);
        rest = &rest[inside..];
        let Some(close) = rest.find("%}") else { break };
        let word = rest[..close].trim_matches(['-', '+', ' ', '\t', '\r', '\n']);
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        result.push_str(&rest[..close].replacen(word, replacement, 1));
        rest = &rest[close..];
    }
    result.push_str(rest);
    Cow::Owned(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_blocks_that_do_nothing() {
        assert_eq!(without_generation_tags("plain {% if x %}"), "plain {% if x %}");
        assert_eq!(
            without_generation_tags("a{%- generation -%} b {%endgeneration%}c"),
            "a{%- if true -%} b {%endif%}c"
        );
        assert_eq!(
            without_generation_tags("{# {% generation %} #}{% if add_generation_prompt %}"),
            "{# {% generation %} #}{% if add_generation_prompt %}"
        );
        assert_eq!(without_generation_tags("{% generation"), "{% generation");
        assert_eq!(without_generation_tags("{# generation"), "{# generation");
    }
}
