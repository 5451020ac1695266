//! A prefill server as a compute unit.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, Rows, SeqId, Unit, Usage, Waker,
};
use baton_weights::Weights;

use super::Key;
use super::channel::Channel;
use super::messages::{Reply, Request, VERSION, longest, narrow};
use super::timed::Cutter;

/// How long a connection may take to be made, and after that greetings to be exchanged.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a server may take for what it is asked, from the first byte that is sent to the last that
/// comes, before it counts as gone.
const REPLY: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 120 });

/// Another machine that reads prompts; it gives no logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUnit {
    /// Its address, `HOST:PORT`.
    pub address: String,
    /// The key that it knows.
    pub key: Key,
}

impl Unit for RemoteUnit {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn compile(
        &self,
        graph: &Graph,
        _: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let empty = KvBlock::zeros(graph, 0)?;
        let mut remote = Remote {
            unit: self.clone(),
            fingerprint: *graph.fingerprint(),
            vocab: graph.vocab(),
            limits,
            most: longest(&empty, limits.context),
            channel: None.into(),
            cutter: Cutter::default(),
            held: HashMap::new().into(),
        };
        remote.limits = remote.connect()?;
        Ok(Box::new(remote))
    }
}

/// A model on another machine.
struct Remote {
    unit: RemoteUnit,
    fingerprint: [u8; 32],
    vocab: usize,
    limits: Limits,
    /// Bytes of the longest message.
    most: usize,
    /// None after it failed.
    channel: RefCell<Option<Channel>>,
    cutter: Cutter,
    /// Tokens of each sequence that the server has.
    held: RefCell<HashMap<SeqId, usize>>,
}

impl Remote {
    /// Connects, with nothing held there; gives the limits that both ends keep to.
    fn connect(&self) -> Result<Limits, ExecError> {
        *self.channel.borrow_mut() = None;
        self.held.borrow_mut().clear();
        let channel = self.open().map_err(|error| self.unreachable(&error))?;
        *self.channel.borrow_mut() = Some(channel);
        let context = narrow(self.limits.context);
        let hello = Request::Hello { version: VERSION, fingerprint: self.fingerprint, context };
        match self.ask_within(CONNECT, &hello)? {
            Reply::Ready { context, kv_tokens, batch_tokens } => Ok(Limits {
                context: self.limits.context.min(context as usize),
                kv_tokens: kv_tokens as usize,
                batch_tokens: self.limits.batch_tokens.min(batch_tokens as usize).max(1),
            }),
            reply => {
                *self.channel.borrow_mut() = None;
                Err(ExecError::Lost(self.refused(reply).to_string()))
            }
        }
    }

    fn open(&self) -> io::Result<Channel> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
        for address in self.unit.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    self.cutter.hold(&stream)?;
                    // Who is shown another key says nothing and hangs up.
                    let other_key = |error: io::Error| match error.kind() {
                        io::ErrorKind::UnexpectedEof => {
                            io::Error::new(io::ErrorKind::PermissionDenied, error)
                        }
                        _ => error,
                    };
                    let channel = Channel::connect(stream, &self.unit.key, CONNECT);
                    return channel.map_err(other_key);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn ask(&self, request: &Request) -> Result<Reply, ExecError> {
        self.ask_within(REPLY, request)
    }

    /// Sends a request and waits for its reply. After a failure nothing is held any more.
    fn ask_within(&self, patience: Duration, request: &Request) -> Result<Reply, ExecError> {
        let mut channel = self.channel.borrow_mut();
        let Some(open) = channel.as_mut() else {
            return Err(ExecError::Lost("the prefill server is not connected".into()));
        };
        let open = open.within(patience);
        let answer = open.send(&request.encode()).and_then(|()| open.receive(self.most));
        let reply = answer.and_then(|bytes| {
            Reply::decode(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
        });
        reply.map_err(|error| {
            *channel = None;
            self.held.borrow_mut().clear();
            self.unreachable(&error)
        })
    }

    /// As [`Remote::ask`], where the sequence's new length is the answer.
    fn change(&self, seq: SeqId, request: &Request) -> Result<(), ExecError> {
        match self.ask(request)? {
            Reply::Done { held } => {
                self.note(seq, held);
                Ok(())
            }
            Reply::Full { needed, free, page_tokens, held } => {
                self.note(seq, held);
                let [needed, free, page_tokens] = [needed, free, page_tokens].map(|n| n as usize);
                Err(ExecError::OutOfPages { needed, free, page_tokens })
            }
            Reply::Failed { held, problem } => {
                self.note(seq, held);
                Err(self.refused(Reply::Failed { held, problem }))
            }
            reply => Err(self.refused(reply)),
        }
    }

    fn note(&self, seq: SeqId, held: u32) {
        match held {
            0 => self.held.borrow_mut().remove(&seq),
            held => self.held.borrow_mut().insert(seq, held as usize),
        };
    }

    fn refused(&self, reply: Reply) -> ExecError {
        let problem = match reply {
            Reply::Failed { problem, .. } => problem,
            _ => "it answers what was not asked".into(),
        };
        // What it says goes to a terminal.
        let problem: String = problem.chars().filter(|c| !c.is_control()).take(300).collect();
        ExecError::Invalid(format!("the prefill server {}: {problem}", self.unit.address))
    }

    fn unreachable(&self, error: &io::Error) -> ExecError {
        let hint = match error.kind() {
            io::ErrorKind::TimedOut => "is it very busy, or the network slow?",
            io::ErrorKind::PermissionDenied => "does it have the same key?",
            _ => "does `baton prefill-server` run there?",
        };
        let address = &self.unit.address;
        ExecError::Lost(format!("the prefill server {address} cannot be used: {error}; {hint}"))
    }
}

impl Executor for Remote {
    /// Takes one span that wants no rows, as a relay gives it.
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        let [span] = &batch.spans[..] else {
            return Err(ExecError::Invalid("a prefill server takes one span at a time".into()));
        };
        if span.rows != Rows::None {
            return Err(ExecError::Unsupported {
                unit: "remote",
                what: "tokens whose logits are wanted".into(),
                instead: "let a unit of this machine write answers".into(),
            });
        }
        if self.channel.borrow().is_none() {
            self.connect()?;
        }
        let (seq, at) = (span.seq, narrow(self.len(span.seq)));
        let request = Request::Forward { seq: seq.0, at, tokens: span.tokens.clone() };
        self.change(seq, &request)?;
        Ok(Logits { vocab: self.vocab, ..Logits::default() })
    }

    fn breaker(&self) -> Option<Waker> {
        let cutter = self.cutter.clone();
        Some(Arc::new(move || cutter.cut()))
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len(&self, seq: SeqId) -> usize {
        self.held.borrow().get(&seq).copied().unwrap_or(0)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        self.change(seq, &Request::Truncate { seq: seq.0, len: narrow(len) })
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        self.change(to, &Request::Copy { from: from.0, to: to.0, len: narrow(len) })
    }

    fn free(&mut self, seq: SeqId) {
        if self.len(seq) > 0 {
            // If that fails, nothing is held either.
            let _ = self.change(seq, &Request::Free { seq: seq.0 });
        }
    }

    fn export_kv(&self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError> {
        let (start, end) = (narrow(range.start), narrow(range.end));
        match self.ask(&Request::Export { seq: seq.0, start, end })? {
            Reply::Block(bytes) => {
                let block = KvBlock::from_bytes(&bytes)?;
                match block.tokens == range.len() {
                    true => Ok(block),
                    false => Err(self.refused(Reply::Block(Vec::new()))),
                }
            }
            reply => Err(self.refused(reply)),
        }
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        if self.channel.borrow().is_none() {
            self.connect()?;
        }
        let block = block.to_bytes();
        self.change(seq, &Request::Import { seq: seq.0, at: narrow(at), block })
    }

    /// What is there is the other machine's.
    fn usage(&self) -> Usage {
        Usage::default()
    }
}
