//! Listening: connections come in, are served, and are let finish when the server is to end.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time;

use crate::models::Models;
use crate::routes::{self, Route};

/// Most headers of a request.
const MAX_HEADERS: usize = 100;
/// Most bytes of a request's first line and headers together.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// The system gave no connection, for want of file descriptors: time until some may be free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// What the server takes, and from whom.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The key that clients must give.
    pub api_key: Option<String>,
    /// Addresses of web pages that may use the server, such as `http://localhost:3000`; `*` for all.
    pub cors_origins: Vec<String>,
    /// Names by which the server is known, besides `localhost` and addresses; `*` for any.
    pub allowed_hosts: Vec<String>,
    /// Most bytes of a request's body.
    pub max_body: usize,
    /// The headers of a request must come within this time; a connection may be idle for as long.
    pub header_timeout: Duration,
    /// The body must come within this time.
    pub body_timeout: Duration,
    /// Most connections at a time; others wait.
    pub max_connections: usize,
    /// When the server is to end, answers that are being made have this long to finish.
    pub drain_timeout: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            api_key: None,
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_body: 32 << 20,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
            max_connections: 1024,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// What all requests share.
pub struct State {
    /// The models that answer.
    pub models: Models,
    /// What is taken, and from whom.
    pub options: ServeOptions,
    /// The description of all routes, for `GET /openapi.json`.
    pub openapi: serde_json::Value,
}

/// The HTTP server.
#[derive(Clone)]
pub struct Server {
    state: Arc<State>,
    drain_timeout: Duration,
    router: Router,
}

impl Server {
    /// A server over `models`.
    pub fn new(models: Models, options: ServeOptions) -> Server {
        Server::with_routes(models, options, routes::all())
    }

    /// A server that has these routes only.
    pub(crate) fn with_routes(models: Models, options: ServeOptions, routes: Vec<Route>) -> Server {
        let drain_timeout = options.drain_timeout;
        let openapi = crate::openapi::document(&routes);
        let state = Arc::new(State { models, options, openapi });
        let router = routes::router(routes, &state);
        Server { state, drain_timeout, router }
    }

    /// The service itself, to be called without a network.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Serves what comes in by `listener` until `shutdown` is over. Then nothing new is taken, and
    /// answers that are being made may finish, for some time.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let options = &self.state.options;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(options.header_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let permits = Arc::new(Semaphore::new(options.max_connections));
        let service = TowerToHyperService::new(self.router);
        let (graceful, mut tasks) = (GracefulShutdown::new(), JoinSet::new());
        let mut shutdown = pin!(shutdown);
        loop {
            let permit = Arc::clone(&permits).acquire_owned();
            let accepted = async {
                let permit = permit.await.expect("nobody closes the semaphore");
                (accept(&listener).await, permit)
            };
            tokio::select! {
                (stream, permit) = accepted => {
                    let connection = http.serve_connection(TokioIo::new(stream), service.clone());
                    let connection = graceful.watch(connection);
                    tasks.spawn(async move {
                        // A client that went away, or that speaks no HTTP, is no fault of ours.
                        if let Err(error) = connection.await {
                            tracing::debug!("a connection ended: {error}");
                        }
                        drop(permit);
                    });
                }
                Some(_) = tasks.join_next() => {}
                () = &mut shutdown => break,
            }
        }
        drop(listener);
        if time::timeout(self.drain_timeout, graceful.shutdown()).await.is_err() {
            tracing::warn!("{} connections were cut off at the end", tasks.len());
        }
        tasks.shutdown().await;
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Each token goes out at once. That it cannot be asked for only costs time.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                tracing::warn!("cannot take a connection: {error}");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    let kinds = [ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests;
