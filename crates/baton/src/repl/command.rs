//! What can be typed in a chat beside questions: the commands that begin with a slash.

use crate::sampling::{self, NAMES};

/// A line that is no question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `/help`, `/?`
    Help,
    /// `/system`: show it, or set it; an empty text removes it.
    System(Option<String>),
    /// `/save NAME`
    Save(String),
    /// `/load NAME`
    Load(String),
    /// `/clear`
    Clear,
    /// `/set parameter NAME VALUE`, or without the word `parameter`.
    Parameter(String, String),
    /// `/set verbose`, `/set quiet`
    Verbose(bool),
    /// `/show WHAT`
    Show(Show),
    /// `/bye`, `/exit`
    Exit,
}

/// What `/show` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// The model in a few lines.
    Info,
    /// The system prompt.
    System,
    /// Sampling parameters.
    Parameters,
    /// The chat template.
    Template,
    /// The conversation.
    History,
}

/// The text of `/help`.
pub const HELP: &str = "\
  /system [TEXT]               show or set the system prompt (\"\" for none)
  /set NAME VALUE              temperature, top_k, top_p, min_p, seed, stop, max_tokens, …;
                               the value `default` forgets what was set
  /set verbose, /set quiet     show or hide timings after each answer
  /show [info|system|parameters|template|history]
  /save NAME, /load NAME       keep this chat, or take up one that was kept; NAME may be a path
  /clear                       forget the conversation
  /help, /?                    this text
  /bye, /exit, Ctrl-D          leave

  \"\"\"                          begins and ends a text of several lines
  Ctrl-C                       stops an answer; at an empty prompt, twice, leaves";

/// First words for completion.
pub const COMPLETIONS: [&str; 16] = [
    "/help",
    "/system ",
    "/save ",
    "/load ",
    "/clear",
    "/set parameter ",
    "/set verbose",
    "/set quiet",
    "/show info",
    "/show system",
    "/show parameters",
    "/show template",
    "/show history",
    "/bye",
    "/exit",
    "/?",
];

impl Command {
    /// Reads a line; `None` if it is a question. A slash alone does not make a command: `/etc/hosts`
    /// and `/ 2` are questions.
    ///
    /// # Errors
    /// A message, if it is a command that makes no sense.
    pub fn parse(line: &str) -> Option<Result<Command, String>> {
        let rest = line.trim().strip_prefix('/')?;
        let (word, argument) = match rest.split_once(char::is_whitespace) {
            Some((word, argument)) => (word, argument.trim()),
            None => (rest, ""),
        };
        let is_word =
            word == "?" || (!word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase()));
        if !is_word {
            return None;
        }
        Some(Self::parse_word(word, argument))
    }

    fn parse_word(word: &str, argument: &str) -> Result<Command, String> {
        let alone = |command| match argument {
            "" => Ok(command),
            _ => Err(format!("/{word} takes no argument")),
        };
        let named = || match argument {
            "" => Err(format!("/{word} needs a name: /{word} NAME")),
            name => Ok(name.to_owned()),
        };
        match word {
            "help" | "?" => Ok(Command::Help),
            "system" if argument.is_empty() => Ok(Command::System(None)),
            "system" => Ok(Command::System(Some(unquoted(argument).to_owned()))),
            "save" => named().map(Command::Save),
            "load" => named().map(Command::Load),
            "clear" => alone(Command::Clear),
            "bye" | "exit" | "quit" => alone(Command::Exit),
            "set" => Self::parse_set(argument),
            "show" => Self::parse_show(argument),
            _ => Err(format!("no command is called /{word}; /help shows all")),
        }
    }

    fn parse_set(argument: &str) -> Result<Command, String> {
        let (what, rest) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
        match (what, rest.trim()) {
            ("verbose", "") => Ok(Command::Verbose(true)),
            ("quiet", "") => Ok(Command::Verbose(false)),
            ("system", text) => Ok(Command::System(Some(unquoted(text).to_owned()))),
            ("parameter", rest) => match rest.split_once(char::is_whitespace) {
                Some((name, value)) => {
                    Ok(Command::Parameter(name.into(), unquoted(value.trim()).into()))
                }
                None => Err(format!("/set parameter NAME VALUE; names are {}", NAMES.join(", "))),
            },
            (name, "") if sampling::is_name(name) => {
                Err(format!("/set {name} needs a value: /set {name} VALUE"))
            }
            (name, value) if sampling::is_name(name) => {
                Ok(Command::Parameter(name.into(), unquoted(value).into()))
            }
            _ => {
                let known = "NAME VALUE, verbose, quiet, or system TEXT";
                Err(format!("/set {known}; names are {}", NAMES.join(", ")))
            }
        }
    }

    fn parse_show(argument: &str) -> Result<Command, String> {
        let what = match argument {
            "" | "info" => Show::Info,
            "system" => Show::System,
            "parameters" => Show::Parameters,
            "template" => Show::Template,
            "history" => Show::History,
            other => {
                let known = "info, system, parameters, template, history";
                return Err(format!("/show knows no {other:?}; it knows {known}"));
            }
        };
        Ok(Command::Show(what))
    }
}

/// The text without quotes around it, with which an empty text can be given.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_no_commands() {
        for line in ["hello", "/etc/hosts is what?", "/ 2", "/", "", "a /help", "/Help me", "1/2"] {
            assert_eq!(Command::parse(line), None, "{line}");
        }
    }

    #[test]
    fn commands_are_read() {
        let text = |s: &str| s.to_owned();
        for (line, command) in [
            ("/help", Command::Help),
            ("/? ", Command::Help),
            ("/system", Command::System(None)),
            ("/system Be brief.", Command::System(Some(text("Be brief.")))),
            ("/system \"\"", Command::System(Some(text("")))),
            ("/set system You are \"it\"", Command::System(Some(text("You are \"it\"")))),
            ("/save a b", Command::Save(text("a b"))),
            ("/load ./x.json", Command::Load(text("./x.json"))),
            ("/clear", Command::Clear),
            (
                "/set parameter temperature 0.2",
                Command::Parameter(text("temperature"), text("0.2")),
            ),
            ("/set temp 0.2", Command::Parameter(text("temp"), text("0.2"))),
            ("/set top-k  default", Command::Parameter(text("top-k"), text("default"))),
            ("/set parameter stop \"\n\"", Command::Parameter(text("stop"), text("\n"))),
            ("/set verbose", Command::Verbose(true)),
            ("/set quiet", Command::Verbose(false)),
            ("/show", Command::Show(Show::Info)),
            ("/show template", Command::Show(Show::Template)),
            ("/bye", Command::Exit),
            ("/exit", Command::Exit),
        ] {
            assert_eq!(Command::parse(line), Some(Ok(command)), "{line}");
        }
    }

    #[test]
    fn nonsense_is_explained() {
        for line in [
            "/sav x",
            "/save",
            "/load",
            "/clear all",
            "/set",
            "/set parameter top_k",
            "/show x",
            "/set temperature",
            "/set warmth 1",
        ] {
            assert!(matches!(Command::parse(line), Some(Err(_))), "{line}");
        }
    }

    #[test]
    fn completions_begin_commands() {
        for text in COMPLETIONS {
            let whole = format!("{text}{}", if text.ends_with(' ') { "top_k 1" } else { "" });
            assert!(matches!(Command::parse(&whole), Some(Ok(_))), "{text}");
        }
    }
}
