//! A chat on the terminal.

mod command;
mod input;
mod transcript;

use std::io::Write;

use baton_engine::{CancelToken, Chat, FinishReason, Grammar};
use baton_text::Message;

use crate::commands::run::{Answer, Sink, Thresholds, fills_context, print_stats};
use crate::failure::{eprintln_quietly, is_broken_pipe, note, one_line, say};
use crate::format;
use crate::interrupt;
use crate::loaded::Loaded;
use crate::paths;
use crate::sampling::Sampling;
use command::{Command, HELP, Show};
use input::{Input, Typed};
use transcript::{Speaker, Transcript, Turn, file_of};

/// How a chat begins.
pub struct Start {
    /// The system prompt.
    pub system: Option<String>,
    /// What is asked before the first line is read.
    pub prompt: Option<String>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// What each answer must look like.
    pub grammar: Option<Grammar>,
    /// Whether each answer is followed by its timings.
    pub verbose: bool,
    /// What each answer should keep to.
    pub thresholds: Thresholds,
}

/// Chats until the user leaves.
///
/// # Errors
/// If the terminal or standard output fails. A failed answer only ends that answer.
pub fn run(model: &Loaded, start: Start) -> anyhow::Result<()> {
    let mut repl = Repl {
        chat: model.chat(start.system.as_deref())?,
        model,
        sampling: start.sampling,
        grammar: start.grammar,
        verbose: start.verbose,
        thresholds: start.thresholds,
    };
    let mut input = Input::open(paths::data_dir().map(|folder| folder.join("history.txt")))?;
    if let Some(prompt) = start.prompt {
        repl.ask(prompt)?;
    }
    loop {
        let Typed::Text(text) = input.read()? else { return Ok(()) };
        match Command::parse(&text) {
            Some(Ok(Command::Exit)) => return Ok(()),
            Some(Ok(command)) => {
                if let Err(error) = repl.obey(command) {
                    if is_broken_pipe(&error) {
                        return Err(error);
                    }
                    say(&one_line(&error), None);
                }
            }
            Some(Err(problem)) => say(&problem, None),
            None if text.is_empty() => {}
            None => repl.ask(text)?,
        }
    }
}

struct Repl<'m> {
    model: &'m Loaded,
    chat: Chat,
    sampling: Sampling,
    grammar: Option<Grammar>,
    verbose: bool,
    thresholds: Thresholds,
}

impl Repl<'_> {
    /// Asks, and shows the answer. What goes wrong with it is said, and the chat goes on.
    fn ask(&mut self, question: String) -> anyhow::Result<()> {
        // From here on, as a long question takes a while to be tokenized.
        let _scope = interrupt::Scope::enter();
        let cancel = CancelToken::new();
        let mut options = self.model.answer_options(&self.sampling, &cancel);
        options.grammar = self.grammar.clone();
        let answer = match self.chat.send(question, &options) {
            Ok(events) => Answer::receive(events, &cancel, Sink::Stream),
            Err(error) => Err(error.into()),
        };
        match answer {
            Ok(answer) => {
                match &answer.summary.reason {
                    FinishReason::Cancelled => note("stopped"),
                    FinishReason::Length if fills_context(&answer.summary, self.model) => {
                        note(format_args!(
                            "the context of {} tokens is full; /clear forgets the conversation, and \
                         `baton run --ctx` makes room for longer ones",
                            self.model.context()
                        ))
                    }
                    _ => {}
                }
                if self.verbose {
                    print_stats(&answer.summary);
                }
                self.thresholds.warn(&answer.summary.metrics);
                Ok(())
            }
            Err(error) if is_broken_pipe(&error) => Err(error),
            Err(error) => {
                say(&one_line(&error), None);
                Ok(())
            }
        }
    }

    fn obey(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Help => eprintln_quietly(format_args!("{HELP}")),
            Command::System(None) => self.show(Show::System)?,
            Command::System(Some(text)) => {
                self.chat.set_system(Some(text.as_str()).filter(|text| !text.trim().is_empty()));
                note("from now on; what was said stays (/clear forgets it)");
            }
            Command::Parameter(name, value) => {
                self.sampling.set(&name, &value).map_err(anyhow::Error::msg)?;
                self.show(Show::Parameters)?;
            }
            Command::Verbose(verbose) => self.verbose = verbose,
            Command::Show(what) => self.show(what)?,
            Command::Clear => {
                self.chat.clear();
                note("the conversation is forgotten");
            }
            Command::Save(name) => self.save(&name)?,
            Command::Load(name) => self.load(&name)?,
            Command::Exit => {}
        }
        Ok(())
    }

    fn system(&self) -> Option<String> {
        let first = self.chat.messages().first();
        first.filter(|message| message.role == "system").map(Message::text)
    }

    /// Questions and answers in turn.
    fn turns(&self) -> impl Iterator<Item = &Message> {
        self.chat.messages().iter().filter(|message| message.role != "system")
    }

    fn save(&self, name: &str) -> anyhow::Result<()> {
        let turns = self.turns().map(|message| Turn {
            role: if message.role == "user" { Speaker::User } else { Speaker::Assistant },
            content: message.text(),
        });
        let system = self.system();
        let (name_of_model, parameters) = (self.model.name(), self.sampling.clone());
        let path = file_of(name)?;
        Transcript::new(name_of_model, system, parameters, turns.collect()).save(&path)?;
        note(format_args!("saved to {}", path.display()));
        Ok(())
    }

    fn load(&mut self, name: &str) -> anyhow::Result<()> {
        let path = file_of(name)?;
        let saved = Transcript::load(&path)?;
        if saved.model != self.model.name() {
            note(format_args!(
                "{} answered in that chat; {} goes on",
                saved.model,
                self.model.name()
            ));
        }
        let messages = saved.messages.len();
        let turns = saved.messages.into_iter().map(|turn| match turn.role {
            Speaker::User => Message::user(turn.content),
            Speaker::Assistant => Message::assistant(turn.content),
        });
        self.chat.set_messages(turns.collect());
        self.chat.set_system(saved.system.as_deref());
        self.sampling = saved.parameters;
        note(format_args!("{messages} messages from {}", path.display()));
        Ok(())
    }

    /// Shows on standard output what was asked for.
    fn show(&self, what: Show) -> anyhow::Result<()> {
        let mut lines = Vec::new();
        match what {
            Show::Info => lines.extend_from_slice(self.model.lines()),
            Show::System => lines.push(self.system().unwrap_or("(no system prompt)".to_owned())),
            Show::Parameters => {
                lines = self.sampling.lines();
                if lines.is_empty() {
                    lines.push("(nothing is set: the model's own recommendations hold)".to_owned());
                }
            }
            Show::Template => lines.push(self.model.template().unwrap_or("(none)").to_owned()),
            Show::History => {
                for message in self.turns() {
                    let mark = if message.role == "user" { ">>> " } else { "" };
                    lines.push(format!("{mark}{}", message.text()));
                }
            }
        }
        let mut out = format::stdout();
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()?;
        Ok(())
    }
}
