//! The commands, one file each.

pub mod bench;
pub mod cache;
pub mod compile;
pub mod completions;
pub mod doctor;
pub mod embed;
pub mod list;
pub mod prefill_server;
pub mod pull;
pub mod report;
pub mod rm;
pub mod run;
pub mod serve;
pub mod show;
pub mod tokenize;
pub mod tune;
