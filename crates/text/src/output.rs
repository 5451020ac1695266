//! What a model writes, split into reasoning, text and tool calls while it comes.
//!
//! Every family of models has its own way to write these, which its chat template gives away: an
//! [`OutputFormat`] is found from that, and makes an [`OutputParser`] for each answer. The parser
//! reads a character at a time, so its result cannot depend on how the text was cut into pieces.
//!
//! Text streams on, but for what may still begin a marker. A tool call is given out when it is
//! whole: only then is it known to be one. Whatever turns out to be none, because its JSON is
//! broken, its tool unknown or the output cut off, comes back as the text it was, so that nothing is
//! lost and nothing comes twice. The work is linear in the length of the output.

mod body;
mod format;
mod function;
mod harmony;
mod json;
mod literal;
mod markers;
mod python;
mod sink;
mod tagged;
mod tags;

use self::format::Syntax;
use self::harmony::Harmony;
use self::sink::Sink;
use self::tags::{Begin, Tags, Think};

/// A part of what a model wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Thoughts before the answer.
    Reasoning(String),
    /// The answer.
    Text(String),
    /// A tool is called.
    ToolCallStart {
        /// Which call of this output it is, from 0.
        index: usize,
        /// The tool, one of [`ParserOptions::tool_names`].
        name: String,
    },
    /// A part of a call's arguments.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// All such parts of a call, joined, are a JSON object.
        json: String,
    },
    /// A call is whole.
    ToolCallEnd {
        /// Which call.
        index: usize,
    },
}

/// What a parser looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParserOptions {
    /// Tool calls are wanted; if not they come as text.
    pub tools: bool,
    /// Reasoning is split off; if not it comes as text, with the markers around it.
    pub reasoning: bool,
    /// The prompt ends inside the reasoning: [`OutputFormat::reasoning_open`] tells.
    pub reasoning_open: bool,
    /// The tools there are. Calls of others come as text.
    pub tool_names: Vec<String>,
}

/// How a model writes reasoning and tool calls, found from its chat template.
#[derive(Clone, Debug)]
pub struct OutputFormat {
    syntax: &'static Syntax,
    think: Option<Think>,
    /// A call may be the whole answer, without a marker.
    bare: bool,
}

impl OutputFormat {
    /// The format that a template is written for; text alone if it shows none, or there is none.
    pub fn detect(template_source: Option<&str>) -> OutputFormat {
        let source = template_source.unwrap_or("");
        let syntax = format::syntax(source);
        // A template that shows no tools leaves it to `normalize_messages` to say how they are called.
        let told = template_source.is_some_and(|source| !source.contains("tools"));
        Self { syntax, think: format::think(source), bare: syntax.bare || told }
    }

    /// Its name: `gpt-oss`, `gemma4`, `functiongemma`, `mistral`, `deepseek`, `kimi`, `lfm2`,
    /// `nemotron`, `glm`, `hermes`, `apriel`, `phi4`, `llama3`, `gemma` or `plain`.
    pub fn name(&self) -> &'static str {
        self.syntax.name
    }

    /// Whether the model may write reasoning.
    pub fn reasons(&self) -> bool {
        self.is_harmony() || self.think.is_some()
    }

    /// Whether the model was trained to call tools in a way that is known. One that was not may
    /// still do as [`ChatTemplate::normalize_messages`](crate::ChatTemplate::normalize_messages)
    /// tells it, which the parser reads too.
    pub fn calls_tools(&self) -> bool {
        self.is_harmony() || !self.syntax.openings.is_empty()
    }

    /// Whether a call may be the whole answer: JSON with a `name` and `parameters`, without any marker.
    pub fn calls_bare(&self) -> bool {
        self.bare
    }

    /// The control tokens, by spelling, that the parser must see: show them with
    /// [`Tokenizer::detokenizer_showing`](crate::Tokenizer::detokenizer_showing). A vocabulary need
    /// not have all of them.
    pub fn visible_tokens(&self) -> &'static [&'static str] {
        self.syntax.visible
    }

    /// Whether a prompt, of which the end is enough, ends inside the reasoning.
    pub fn reasoning_open(&self, rendered_prompt_tail: &str) -> bool {
        self.begin(rendered_prompt_tail) == Begin::Reasoning
    }

    /// The texts around the reasoning in the answer to a prompt, of which the end is enough. The
    /// first is `None` where the model is certain to reason: its reasoning, which may be short, ends
    /// with the others, which come one after the other with anything between them. Nothing if there
    /// will be no reasoning.
    pub fn reasoning_around(
        &self,
        rendered_prompt_tail: &str,
    ) -> Option<(Option<&'static str>, Vec<&'static str>)> {
        if self.is_harmony() {
            return Some((None, harmony::FINAL.to_vec()));
        }
        let think = self.think?;
        match self.begin(rendered_prompt_tail) {
            Begin::Text => None,
            Begin::Reasoning => Some((None, vec![think.close])),
            Begin::Undecided => Some((Some(think.open), vec![think.close])),
        }
    }

    /// A parser for one answer.
    pub fn parser(&self, options: ParserOptions) -> OutputParser {
        let begin = if options.reasoning_open { Begin::Reasoning } else { Begin::Undecided };
        self.parser_from(options, begin)
    }

    /// A parser for the answer to a prompt, of which the end is enough. Besides whether the prompt
    /// opened the reasoning, which need not be set in `options`, it sees whether it closed it: then
    /// nothing is undecided at the beginning.
    pub fn parser_after(&self, options: ParserOptions, rendered_prompt_tail: &str) -> OutputParser {
        let begin = match self.begin(rendered_prompt_tail) {
            Begin::Undecided if options.reasoning_open => Begin::Reasoning,
            begin => begin,
        };
        self.parser_from(options, begin)
    }

    fn parser_from(&self, options: ParserOptions, begin: Begin) -> OutputParser {
        let ParserOptions { tools, reasoning, tool_names, .. } = options;
        let mut sink = Sink::default();
        sink.tools.names = tool_names;
        let machine = if self.is_harmony() {
            Machine::Harmony(Harmony::new(tools, reasoning, begin == Begin::Reasoning))
        } else {
            let openings = if tools { self.syntax.openings } else { &[] };
            let bare = tools && self.bare;
            Machine::Tags(Box::new(Tags::new(openings, self.think, bare, reasoning, begin)))
        };
        OutputParser { machine, sink }
    }

    fn is_harmony(&self) -> bool {
        self.syntax.name == "gpt-oss"
    }

    fn begin(&self, prompt: &str) -> Begin {
        let end = prompt.trim_end();
        if self.is_harmony() {
            let open = end.ends_with("<|channel|>analysis<|message|>");
            return if open { Begin::Reasoning } else { Begin::Undecided };
        }
        match self.think {
            Some(think) if end.ends_with(think.open) => Begin::Reasoning,
            Some(think) if end.ends_with(think.close) => Begin::Text,
            Some(_) => Begin::Undecided,
            None => Begin::Text,
        }
    }
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct OutputParser {
    machine: Machine,
    sink: Sink,
}

#[derive(Clone, Debug)]
enum Machine {
    Tags(Box<Tags>),
    Harmony(Harmony),
}

impl OutputParser {
    /// Lets it see the tools, a list as in the OpenAI API. Some formats write arguments as bare text,
    /// and only the schema of a parameter tells the number 7 from the text "7"; without it what reads
    /// as JSON is taken for that.
    #[must_use]
    pub fn with_schemas(mut self, tools: &serde_json::Value) -> Self {
        self.sink.tools.learn(tools);
        self
    }

    /// Takes the next part of the output and returns what is now known.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        for c in text.chars() {
            match &mut self.machine {
                Machine::Tags(tags) => tags.push(c, &mut self.sink),
                Machine::Harmony(harmony) => harmony.push(c, &mut self.sink),
            }
        }
        self.sink.take()
    }

    /// The end of the output: returns what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        match &mut self.machine {
            Machine::Tags(tags) => tags.finish(&mut self.sink),
            Machine::Harmony(harmony) => harmony.finish(&mut self.sink),
        }
        self.sink.take()
    }

    /// Whether a grammar for the answer must still wait: the model reasons, or may be about to. In
    /// the harmony format this holds until the message that is the answer begins.
    pub fn reasoning(&self) -> bool {
        match &self.machine {
            Machine::Tags(tags) => tags.reasoning(),
            Machine::Harmony(harmony) => harmony.reasoning(),
        }
    }
}

#[cfg(test)]
mod tests;
