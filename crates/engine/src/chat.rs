//! A conversation: messages, the template that renders them, and a session that remembers.

use baton_text::{ChatTemplate, Message, OutputFormat, RenderOptions};

use crate::{
    Engine, Event, GenerateOptions, Generation, Prompt, Reasoning, Result, Session, Summary,
};

/// A chat over an [`Engine`].
///
/// Each turn renders the whole conversation through the model's template, so that the model sees
/// what it was trained on; of that only what is new is evaluated.
#[derive(Debug)]
pub struct Chat {
    session: Session,
    template: ChatTemplate,
    render: RenderOptions,
    messages: Vec<Message>,
}

impl Engine {
    /// A chat with the model's own template.
    ///
    /// # Errors
    /// If the model has no chat template or no tokenizer.
    pub fn chat(&self) -> Result<Chat> {
        let template = self.traits().templates.choose(false)?.clone();
        self.chat_with_template(template)
    }

    /// A chat with another template.
    ///
    /// # Errors
    /// If the engine has no tokenizer.
    pub fn chat_with_template(&self, template: ChatTemplate) -> Result<Chat> {
        self.tokenizer()?;
        Ok(Chat {
            session: self.session(),
            template,
            render: RenderOptions::for_answer(),
            messages: Vec::new(),
        })
    }
}

impl Chat {
    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces all messages. What the new ones have in common with the old is not evaluated again.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// Sets the system message, which comes before all others; `None` removes it.
    pub fn set_system(&mut self, text: Option<&str>) {
        if self.messages.first().is_some_and(|message| message.role == "system") {
            self.messages.remove(0);
        }
        if let Some(text) = text {
            self.messages.insert(0, Message::system(text));
        }
    }

    /// Forgets everything but the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// What else the template is rendered with, such as tools.
    pub fn render_options(&mut self) -> &mut RenderOptions {
        &mut self.render
    }

    /// The session that it runs in.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Says `text` and starts the answer. A grammar, and stop strings, count after the reasoning that the
    /// template has models write, unless the options say where they begin. When the answer ends, however it does, both are part of
    /// the conversation; if no token of it came, neither is.
    ///
    /// # Errors
    /// As [`Chat::answer`]; the conversation is then as it was.
    pub fn send(
        &mut self,
        text: impl Into<String>,
        options: &GenerateOptions,
    ) -> Result<ChatAnswer<'_>> {
        self.messages.push(Message::user(text));
        match self.rendered() {
            Ok(prompt) => self.start(prompt, options, true),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Starts an answer to the messages as they are. When it ends it is part of the conversation, if
    /// any token of it came.
    ///
    /// # Errors
    /// If the template refuses the conversation, it does not fit the context, or an option makes no
    /// sense.
    pub fn answer(&mut self, options: &GenerateOptions) -> Result<ChatAnswer<'_>> {
        let prompt = self.rendered()?;
        self.start(prompt, options, false)
    }

    fn rendered(&self) -> Result<String> {
        let tokenizer = self.session.engine().tokenizer()?;
        let tools = self.render.tools.as_ref();
        let messages = self.template.normalize_messages(&self.messages, tools);
        let guarded: Vec<Message> = messages.iter().map(|m| tokenizer.guard(m)).collect();
        Ok(self.template.render(&guarded, &self.render)?)
    }

    fn start(
        &mut self,
        prompt: String,
        options: &GenerateOptions,
        take_back: bool,
    ) -> Result<ChatAnswer<'_>> {
        let mut options = options.clone();
        if options.reasoning.is_none() {
            let format = OutputFormat::detect(Some(self.template.source()));
            options.reasoning = Reasoning::of(&format, &prompt);
        }
        let Chat { session, messages, .. } = self;
        match session.generate(Prompt::Rendered(prompt), &options) {
            Ok(generation) => {
                let text = String::new();
                Ok(ChatAnswer { generation, messages, text, answered: false, take_back })
            }
            Err(error) => {
                if take_back {
                    messages.pop();
                }
                Err(error)
            }
        }
    }
}

/// One answer of a [`Chat`]: an iterator of [`Event`]s, as [`Generation`] is.
#[derive(Debug)]
pub struct ChatAnswer<'c> {
    generation: Generation<'c>,
    messages: &'c mut Vec<Message>,
    text: String,
    /// Whether a token came, or the model chose to say nothing.
    answered: bool,
    /// Whether the user's message goes if nothing was answered.
    take_back: bool,
}

impl ChatAnswer<'_> {
    /// The token ids of the rendered conversation.
    pub fn prompt(&self) -> &[u32] {
        self.generation.prompt()
    }

    /// Runs to the end: the whole text and how it ended.
    ///
    /// # Errors
    /// The first error.
    pub fn finish(self) -> Result<(String, Summary)> {
        crate::event::finish(self)
    }

    /// Only the pieces of text, as they come.
    pub fn text(self) -> impl Iterator<Item = Result<String>> {
        crate::event::text(self)
    }
}

impl Iterator for ChatAnswer<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.generation.next()?;
        match &event {
            Ok(Event::Token(_)) => self.answered = true,
            Ok(Event::Text(piece)) => self.text += piece,
            // An empty answer that the model chose to give is one.
            Ok(Event::Done(summary)) if summary.reason.is_complete() => self.answered = true,
            _ => {}
        }
        Some(event)
    }
}

impl Drop for ChatAnswer<'_> {
    fn drop(&mut self) {
        if self.answered {
            self.messages.push(Message::assistant(std::mem::take(&mut self.text)));
        } else if self.take_back {
            self.messages.pop();
        }
    }
}
