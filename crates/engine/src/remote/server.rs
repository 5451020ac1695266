//! Reads prompts for other machines.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use baton_graph::{ExecError, Executor, KvBlock, Limits, SeqId};

use super::Key;
use super::channel::Channel;
use super::messages::{Reply, Request, VERSION, narrow};
use super::pool::{Pool, failed};

/// Most clients at the same time.
const MOST_CLIENTS: usize = 16;
/// How long a client may take to say who it is, and to receive a part of what it asked for.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// How long a client may ask for nothing.
const IDLE: Duration = Duration::from_secs(3600);
/// How often is looked whether the server is to end.
const WATCH: Duration = Duration::from_millis(100);
/// Of a message besides tokens or a block.
const HEAD: usize = 1024;

/// A model that reads prompts for who knows the key.
pub struct PrefillServer {
    key: Key,
    /// A block of no tokens, which says what model it is.
    empty: KvBlock,
    limits: Limits,
    pool: Mutex<Pool>,
    clients: Mutex<HashMap<u64, Client>>,
}

struct Client {
    stream: TcpStream,
    /// When it came, until it has shown that it knows the key.
    since: Option<Instant>,
}

impl PrefillServer {
    /// A server with this model.
    ///
    /// # Errors
    /// If the model's cache cannot be handed over.
    pub fn new(executor: Box<dyn Executor>, key: Key) -> Result<Self, ExecError> {
        let empty = executor.export_kv(SeqId(0), 0..0)?;
        let limits = *executor.limits();
        let (pool, clients) = (Mutex::new(Pool::new(executor)), Mutex::default());
        Ok(PrefillServer { key, empty, limits, pool, clients })
    }

    /// Serves until `is_over`; then all connections end.
    ///
    /// # Errors
    /// If nobody can connect any more.
    pub fn serve(&self, listener: &TcpListener, is_over: impl Fn() -> bool) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let result = thread::scope(|scope| {
            let mut next = 0u64;
            let result = loop {
                if is_over() {
                    break Ok(());
                }
                self.hang_up_on_strangers();
                match listener.accept() {
                    Ok((stream, address)) => {
                        next += 1;
                        let client = next;
                        if !self.enter(client, &stream) {
                            tracing::warn!(%address, "refused: there are {MOST_CLIENTS} clients");
                            continue;
                        }
                        scope.spawn(move || {
                            tracing::info!(%address, "connected");
                            match self.attend(client, stream) {
                                Ok(()) => tracing::info!(%address, "gone"),
                                Err(error) => tracing::warn!(%address, "gone: {error}"),
                            }
                            self.leave(client);
                        });
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(WATCH),
                    // That client's fault, or there are too many open files for now.
                    Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                        tracing::debug!("a connection failed: {error}");
                        thread::sleep(WATCH);
                    }
                    Err(error) => break Err(error),
                }
            };
            for client in self.clients().values() {
                let _ = client.stream.shutdown(Shutdown::Both);
            }
            result
        });
        listener.set_nonblocking(false)?;
        result
    }

    /// Does what one client asks for, until it goes.
    fn attend(&self, client: u64, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut channel = Channel::accept(stream, &self.key)?;
        let hello = Request::decode(&channel.receive(HEAD)?);
        let reply = self.greet(hello.as_ref());
        channel.send(&reply.encode())?;
        if !matches!(reply, Reply::Ready { .. }) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it wants another model"));
        }
        if let Some(client) = self.clients().get_mut(&client) {
            client.since = None;
        }
        channel.stream().set_read_timeout(Some(IDLE))?;
        let most = HEAD + self.empty_bytes(self.limits.context).max(4 * self.limits.batch_tokens);
        loop {
            let bytes = match channel.receive(most) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            };
            let Some(request) = Request::decode(&bytes) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it asks for nonsense"));
            };
            drop(bytes);
            let reply = self.pool().answer(client, request);
            channel.send(&reply.encode())?;
        }
    }

    fn greet(&self, hello: Option<&Request>) -> Reply {
        let Some(Request::Hello { version, fingerprint, context }) = hello else {
            return failed(0, "it was not greeted");
        };
        if *version != VERSION {
            return failed(
                0,
                "it is of another version; use the same version of Baton on both ends",
            );
        }
        if *fingerprint != self.empty.fingerprint {
            let problem = "it has another model, or the same with a context that rotates keys in \
                           another way; load the same file with the same --ctx on both ends";
            return failed(0, problem);
        }
        Reply::Ready {
            context: narrow(self.limits.context).min(*context),
            kv_tokens: narrow(self.limits.kv_tokens),
            batch_tokens: narrow(self.limits.batch_tokens),
        }
    }

    /// Bytes of a block.
    fn empty_bytes(&self, tokens: usize) -> usize {
        let KvBlock { layers, kv_heads, head_dim, .. } = &self.empty;
        4 * layers * kv_heads * head_dim * tokens
    }

    fn enter(&self, client: u64, stream: &TcpStream) -> bool {
        let mut clients = self.clients();
        match stream.try_clone() {
            Ok(stream) if clients.len() < MOST_CLIENTS => {
                clients.insert(client, Client { stream, since: Some(Instant::now()) });
                true
            }
            _ => false,
        }
    }

    /// Whoever says one byte now and then does not keep others out.
    fn hang_up_on_strangers(&self) {
        for client in self.clients().values() {
            if client.since.is_some_and(|since| since.elapsed() > PATIENCE) {
                let _ = client.stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn leave(&self, client: u64) {
        self.clients().remove(&client);
        self.pool().leave(client);
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<u64, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pass that panicked leaves a sequence whose owner hears no more of it.
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
