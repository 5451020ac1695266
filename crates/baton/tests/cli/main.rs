//! The built program from outside: arguments, output, exit codes. No network, no real model.

mod bench;
mod cache;
mod compile;
mod doctor;
mod embed;
mod folders;
mod help;
mod http;
mod models;
mod program;
mod real;
mod run;
mod serve;
mod server;
mod tiny;
mod units;

#[cfg(unix)]
mod chat;
#[cfg(unix)]
mod signals;
