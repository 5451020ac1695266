//! Chat templates: a conversation to the prompt the model was trained on.
//!
//! The templates are the models' own, written in Jinja for Python's `transformers`. They run in
//! `minijinja` with what that program adds to the language (`raise_exception`, `strftime_now`,
//! `tojson`, string methods, loop controls), and print values as Python does. A template comes with
//! a model from anywhere, so the work it can do and the text it can write are bounded, and it runs in
//! a thread of its own, out of which no panic and no endless loop comes.

mod isolated;
mod message;
mod normalize;
mod python;
mod source;
mod sums;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};

pub use self::isolated::TEMPLATE_THREAD;
pub use self::message::{Content, Message};
pub use self::source::ChatTemplates;
use crate::error::{Error, Result};

/// The longest template source that is read, in bytes.
const MAX_SOURCE: usize = 1 << 20;
/// How deep macros and loops may nest.
const MAX_DEPTH: usize = 100;
/// Stack for compiling a template, and more of it for each byte of its source: the compiler bounds
/// how deep parentheses nest, but not how long chains become.
const COMPILE_STACK: usize = 4 << 20;
const COMPILE_STACK_PER_BYTE: usize = 2048;
/// Stack for rendering, per unit of fuel: that much work can nest a value so deeply that dropping
/// or printing it takes as much.
const RENDER_STACK_PER_FUEL: usize = 256;
const MAX_STACK: usize = 2 << 30;
/// An honest template takes milliseconds, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Variables that are not for others to set.
const RESERVED: [&str; 6] =
    ["messages", "tools", "add_generation_prompt", "strftime_now", "bos_token", "eos_token"];

/// What a conversation is rendered with.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Ends the prompt with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The tools the model may call: a list of JSON schemas, as in the OpenAI API.
    pub tools: Option<serde_json::Value>,
    /// Further variables of the template, such as `enable_thinking`, `reasoning_effort` or
    /// `documents`, but none of those that [`ChatTemplate::render`] sets from its other arguments.
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// The local time that `strftime_now` tells; the clock's if `None`.
    pub now: Option<jiff::civil::DateTime>,
}

impl RenderOptions {
    /// What a chat needs: a prompt that the assistant answers.
    pub fn for_answer() -> Self {
        Self { add_generation_prompt: true, ..Self::default() }
    }
}

/// A compiled chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    bos: Option<String>,
    eos: Option<String>,
    contents: Contents,
    /// What `normalize_messages` has to do, once it is known.
    traits: Arc<OnceLock<normalize::Traits>>,
}

/// Which forms of a message's content a template understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Text,
    Parts,
    Both,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the tokens it knows as `bos_token` and `eos_token`.
    ///
    /// # Errors
    ///
    /// The source is not valid Jinja.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            let reason = format!("it is {} bytes long, the most is {MAX_SOURCE}", source.len());
            return Err(Error::TemplateSyntax { reason });
        }
        let mut template = Self {
            environment: Arc::new(Environment::empty()),
            source: source.into(),
            bos: bos.map(str::to_owned),
            eos: eos.map(str::to_owned),
            contents: Contents::Both,
            traits: Arc::default(),
        };
        let stack = COMPILE_STACK + COMPILE_STACK_PER_BYTE * source.len();
        let source = source::without_generation_tags(source).into_owned();
        template.environment =
            isolated::run(stack.min(MAX_STACK), PATIENCE, || compile(source).map(Arc::new))?;
        template.contents = template.probe();
        Ok(template)
    }

    /// The ChatML format, for a model that has no template but was trained on this one.
    ///
    /// Only a user can know that it fits; nothing falls back to it by itself.
    pub fn fallback_chatml() -> Self {
        const CHATML: &str = "{% for message in messages %}\
            {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
            {% endfor %}\
            {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        Self::new(CHATML, None, None).expect("the built-in template compiles")
    }

    /// The template as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt of a conversation.
    ///
    /// The text contains the control tokens it needs, BOS too if the model wants one. Pass messages
    /// through [`Tokenizer::guard`](crate::Tokenizer::guard) before, and encode the text with
    /// [`Tokenizer::encode_guarded`](crate::Tokenizer::encode_guarded): then names of control tokens
    /// in messages stay text.
    ///
    /// # Errors
    ///
    /// The template refuses the conversation, fails, or exceeds the bounds; or a variable in
    /// [`RenderOptions::extra`] is one of its own.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        if let Some(name) = RESERVED.iter().find(|name| options.extra.contains_key(**name)) {
            let reason =
                format!("the variable {name:?} cannot be set, it is made from the messages");
            return Err(Error::TemplateRender { reason });
        }
        let fitted: Vec<_> = messages.iter().map(|message| self.fit(message)).collect();
        let mut bytes = size(&options.tools) + size(&options.extra);
        bytes += fitted.iter().map(size).sum::<usize>();
        self.render_bounded(fitted, options, bytes)
    }

    /// Renders within bounds that grow with the conversation: an honest template looks at each
    /// byte a few times and writes it once or twice.
    fn render_bounded(
        &self,
        messages: Vec<Message>,
        options: &RenderOptions,
        bytes: usize,
    ) -> Result<String> {
        // One unit of fuel is an instruction or 64 bytes of data.
        let fuel = 1_000_000 + 10_000 * messages.len() + 2 * bytes;
        let most = (1 << 20) + 1024 * messages.len() + 16 * bytes;
        let stack = RENDER_STACK_PER_FUEL.saturating_mul(fuel).min(MAX_STACK);
        let limit = PATIENCE + Duration::from_secs((bytes >> 20) as u64);
        let (template, options) = (self.clone(), options.clone());
        isolated::run(stack, limit, move || template.render_here(&messages, &options, fuel, most))
    }

    /// Renders in this thread.
    fn render_here(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        fuel: usize,
        most: usize,
    ) -> Result<String> {
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(fuel as u64));
        let failed = |error: &minijinja::Error| classify(error);
        let template = environment.get_template("chat").map_err(|error| failed(&error))?;

        let mut context: Vec<(&str, Value)> = vec![
            ("messages", Value::from(Serde(messages))),
            ("tools", Value::from(Serde(&options.tools))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            ("strftime_now", python::strftime_now(options.now)),
        ];
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            context.extend(token.as_ref().map(|token| (name, Value::from(token.as_str()))));
        }
        let extra = options.extra.iter();
        context.extend(extra.map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));

        let mut output = Output { text: Vec::new(), most };
        let context = Value::from_pairs(context);
        template.render_captured_to(context, &mut output).map_err(|error| {
            if output.text.len() > output.most {
                let reason = format!("it wrote more than {most} bytes");
                return Error::TemplateLimit { reason };
            }
            failed(&error)
        })?;
        String::from_utf8(output.text)
            .map_err(|error| Error::TemplateRender { reason: error.to_string() })
    }

    /// A message in a form the template understands.
    fn fit(&self, message: &Message) -> Message {
        let mut message = message.clone();
        message.content = match (self.contents, message.content) {
            (Contents::Text, Some(Content::Parts(parts))) => {
                Some(Content::Parts(parts).into_text())
            }
            (Contents::Parts, Some(Content::Text(text))) => Some(Content::text_part(text)),
            (_, content) => content,
        };
        message
    }

    /// Finds out which forms of content come through the template.
    fn probe(&self) -> Contents {
        const MARK: &str = "baton-probe";
        let render = |content: Content| {
            let user = Message { content: Some(content), ..Message::user("") };
            self.render_bounded(vec![user], &RenderOptions::for_answer(), 64)
        };
        // A list that is printed as such is not understood.
        let shows = |text: Result<String>| {
            text.is_ok_and(|text| text.contains(MARK) && !text.contains(&format!("'{MARK}'")))
        };
        let text = render(Content::Text(MARK.to_owned()));
        if matches!(text, Err(Error::TemplateLimit { .. })) {
            return Contents::Both;
        }
        match (shows(text), shows(render(Content::text_part(MARK.to_owned())))) {
            (true, false) => Contents::Text,
            (false, true) => Contents::Parts,
            _ => Contents::Both,
        }
    }
}

/// The environment with the compiled template in it.
fn compile(source: String) -> Result<Environment<'static>> {
    let failed = |error: minijinja::Error| Error::TemplateSyntax { reason: describe(&error) };
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.map_err(failed)?;
    let source = sums::with_charges(source, &syntax);
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(MAX_DEPTH);
    python::install(&mut environment);
    environment.add_filter(sums::FILTER, sums::charged);
    environment.add_template_owned("chat", source).map_err(failed)?;
    Ok(environment)
}

/// The text of a render, cut off by an error before it grows without end.
struct Output {
    text: Vec<u8>,
    most: usize,
}

impl std::io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(bytes);
        if self.text.len() > self.most {
            return Err(std::io::Error::other("too much text"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How many bytes a value takes as JSON.
fn size(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

/// Tells a refusal from a failure, and both from a template that ran away.
fn classify(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(refused) = current.downcast_ref::<python::Refused>() {
            return Error::TemplateRefused { message: refused.0.clone() };
        }
        let inner = current.downcast_ref::<minijinja::Error>();
        if inner.is_some_and(|inner| inner.kind() == ErrorKind::OutOfFuel) {
            let reason = "it did more work than any conversation of this size needs".into();
            return Error::TemplateLimit { reason };
        }
        cause = current.source();
    }
    Error::TemplateRender { reason: describe(error) }
}

/// An error with its place and its causes in one line.
fn describe(error: &minijinja::Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text += &format!(": {detail}");
    }
    if let Some(line) = error.line() {
        text += &format!(" (line {line})");
    }
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text += &format!("; {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests;
