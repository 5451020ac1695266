//! What clients call models.
//!
//! A client's name is never a path: nothing that comes over the network is looked up in the file
//! system but in the store's own folder, under an escaped name.

use baton_hub::{HfRef, Reference};

/// Reads the name of a model as clients write it: a name of the catalog or the store, `ORG/REPO`,
/// `hf.co/ORG/REPO:QUANT`, or the address of a file that is in the store. Clients of Ollama put
/// `:latest` behind names that have no tag. `None` for what can be no name, paths included.
pub(crate) fn parse(text: &str) -> Option<Reference> {
    let text = text.trim();
    if ["https://", "http://"].iter().any(|start| text.starts_with(start)) {
        return Reference::parse(text).ok();
    }
    let hub = ["hf:", "hf.co/", "huggingface.co/"].iter().find_map(|p| text.strip_prefix(p));
    if hub.is_some() || text.contains('/') {
        let mut hf: HfRef = hub.unwrap_or(text).parse().ok()?;
        hf.pick = hf.pick.filter(|pick| pick != "latest");
        return Some(Reference::Hf(hf));
    }
    match Reference::parse(text).ok()? {
        name @ Reference::Name(_) => Some(name),
        _ => None,
    }
}

/// The spelling that clients of Ollama expect: every name has a tag.
pub(crate) fn tagged(name: &str) -> String {
    if let Some(hub) = name.strip_prefix("hf:") {
        let tag = if hub.contains(':') { "" } else { ":latest" };
        return format!("hf.co/{hub}{tag}");
    }
    match name.contains(':') {
        true => name.to_owned(),
        false => format!("{name}:latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_every_spelling() {
        for (text, canonical) in [
            ("smollm2", "smollm2"),
            ("SmolLM2:latest", "smollm2"),
            ("gemma3:270m", "gemma3:270m"),
            ("org/repo", "hf:org/repo"),
            ("hf.co/org/repo:latest", "hf:org/repo"),
            ("huggingface.co/Org/Repo:Q4_K_M", "hf:Org/Repo:Q4_K_M"),
            ("hf:org/repo@v1:Q8_0", "hf:org/repo@v1:Q8_0"),
            ("https://example.com/x.gguf", "https://example.com/x.gguf"),
        ] {
            let read = parse(text).map(|reference| reference.to_string());
            assert_eq!(read.as_deref(), Some(canonical), "{text}");
            assert_eq!(parse(&tagged(canonical)), parse(canonical), "{canonical}");
        }
    }

    #[test]
    fn a_path_is_no_name() {
        for text in [
            "",
            " ",
            "/etc/passwd",
            "./model.gguf",
            "../../x",
            "~/x",
            "~",
            ".",
            "model.gguf",
            "C:\\x.gguf",
            "crates/server",
            "a/b/c",
            "a\0b",
            "hf:../..",
            "org/..",
        ] {
            let read = parse(text);
            let harmless = matches!(&read, None | Some(Reference::Hf(_)));
            assert!(harmless, "{text}: {read:?}");
        }
        // Whether there is such a folder does not matter.
        assert_eq!(parse("src/models").unwrap().to_string(), "hf:src/models");
    }
}
