//! Reads prompts for other machines.

mod door;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use baton_graph::{ExecError, Executor, KvBlock, Limits, SeqId};

use super::Key;
use super::channel::Channel;
use super::messages::{HEAD, Reply, Request, VERSION, longest, narrow};
use super::pool::{Pool, failed};
use door::{Door, MOST_CLIENTS};

/// How long a stranger may take to show the key and to say what it wants.
const GREETING: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// How long a client may take to receive what it asked for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a client may ask for nothing.
const IDLE: Duration = Duration::from_secs(3600);
/// How often is looked whether the server is to end.
const WATCH: Duration = Duration::from_millis(100);

/// A model that reads prompts for who knows the key.
pub struct PrefillServer {
    key: Key,
    /// A block of no tokens, which says what model it is.
    empty: KvBlock,
    limits: Limits,
    pool: Mutex<Pool>,
    door: Door,
}

/// One who is connected. Whatever ends its thread gives its place back.
struct Guest<'s> {
    server: &'s PrefillServer,
    id: u64,
    address: SocketAddr,
}

impl PrefillServer {
    /// A server with this model.
    ///
    /// # Errors
    /// If the model's cache cannot be handed over.
    pub fn new(executor: Box<dyn Executor>, key: Key) -> Result<Self, ExecError> {
        let empty = executor.export_kv(SeqId(0), 0..0)?;
        let limits = *executor.limits();
        let (pool, door) = (Mutex::new(Pool::new(executor)), Door::default());
        Ok(PrefillServer { key, empty, limits, pool, door })
    }

    /// Serves until `is_over`; then all connections end.
    ///
    /// # Errors
    /// If nobody can connect any more.
    pub fn serve(&self, listener: &TcpListener, is_over: impl Fn() -> bool) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let result = thread::scope(|scope| {
            let result = loop {
                if is_over() {
                    break Ok(());
                }
                match listener.accept() {
                    Ok((stream, address)) => {
                        let Some(id) = self.door.enter(&stream) else {
                            self.door.turned_away(address, &"too many others come");
                            continue;
                        };
                        let guest = Guest { server: self, id, address };
                        let thread = thread::Builder::new().name("baton-client".into());
                        let started = thread.spawn_scoped(scope, move || guest.stay(stream));
                        if let Err(error) = started {
                            self.door.turned_away(address, &error);
                        }
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
            self.door.close();
            result
        });
        listener.set_nonblocking(false)?;
        result
    }

    /// What a stranger that knows the key is told.
    fn greet(&self, id: u64, hello: Option<&Request>) -> Reply {
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
        if !self.door.prove(id) {
            return failed(0, &format!("it has {MOST_CLIENTS} clients already; try again later"));
        }
        Reply::Ready {
            context: narrow(self.limits.context).min(*context),
            kv_tokens: narrow(self.limits.kv_tokens),
            batch_tokens: narrow(self.limits.batch_tokens),
        }
    }

    /// A pass that panicked leaves a sequence whose owner hears no more of it.
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest<'_> {
    /// Serves it until it goes.
    fn stay(&self, stream: TcpStream) {
        let address = self.address;
        // A fault ends this connection and no other; locks are taken as they are found.
        let served = catch_unwind(AssertUnwindSafe(|| {
            let greeted = self.greet(stream);
            greeted.map(|mut channel| {
                tracing::info!(%address, "connected");
                self.attend(&mut channel)
            })
        }));
        match served {
            Ok(Ok(Ok(()))) => tracing::info!(%address, "gone"),
            Ok(Ok(Err(error))) => tracing::warn!(%address, "gone: {error}"),
            Ok(Err(error)) => self.server.door.turned_away(address, &error),
            Err(_) => tracing::error!(%address, "hung up on after a fault of this program"),
        }
    }

    /// A channel to one that knows the key and for which there is a place.
    fn greet(&self, stream: TcpStream) -> io::Result<Channel> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let mut channel = Channel::accept(stream, &self.server.key, GREETING)?;
        let hello = Request::decode(&channel.receive(HEAD)?);
        let reply = self.server.greet(self.id, hello.as_ref());
        channel.send(&reply.encode())?;
        match reply {
            Reply::Failed { problem, .. } => Err(io::Error::other(format!("told that {problem}"))),
            _ => Ok(channel),
        }
    }

    /// Does what a client asks for, until it goes.
    fn attend(&self, channel: &mut Channel) -> io::Result<()> {
        let PrefillServer { limits, empty, .. } = self.server;
        let most = longest(empty, limits.context).max(4 * limits.batch_tokens + HEAD);
        loop {
            let bytes = match channel.within(IDLE).receive(most) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            };
            let Some(request) = Request::decode(&bytes) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it asks for nonsense"));
            };
            drop(bytes);
            let reply = self.server.pool().answer(self.id, request);
            channel.within(PATIENCE).send(&reply.encode())?;
        }
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if self.server.door.leave(self.id) {
            self.server.pool().leave(self.id);
        }
    }
}

#[cfg(test)]
mod tests;
